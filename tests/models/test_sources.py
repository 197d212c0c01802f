"""Models from every source: they give the outputs of the original, or are refused in one sentence."""

from __future__ import annotations

import functools
import http.server
import io
import json
import pickle
import re
import subprocess
import sys
import threading
import warnings
import zipfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import smoothcert as sc
from smoothcert import data, models
from smoothcert.classifiers.identity import model_identity
from smoothcert.models import LoadedModel, from_numpy, load_model, open_model
from smoothcert.models.normalize import normalization
from smoothcert.specifiers import Specifier, short_name
from smoothcert.types import CheckpointError, SmoothcertError, UsageError

NETS = """
from torch import nn

def small(channels=1, classes=10):
    return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, classes))

ready = small().eval()
number = 3

def broken():
    raise ValueError("no such file")

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
"""


def network(channels: int = 1, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)).eval()


def inputs(count: int = 5, channels: int = 1) -> torch.Tensor:
    return torch.rand((count, channels, 8, 8), generator=torch.Generator().manual_seed(1))


def same(loaded: LoadedModel | nn.Module, model: nn.Module, x: torch.Tensor) -> bool:
    found = loaded.model if isinstance(loaded, LoadedModel) else loaded
    assert not found.training
    with torch.inference_mode():
        return all(torch.allclose(found(x[:rows]), model(x[:rows]), rtol=1e-4, atol=1e-5) for rows in (1, 2, len(x)))


def certify(model: nn.Module, x: torch.Tensor) -> sc.Certificate:
    return sc.Smoothed(model, sc.Gaussian(0.1)).certify(x, sc.Cohen(n0=10, n=100), seed=0)


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A folder of the user's own code, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"nets_of_{tmp_path.name}.py").write_text(NETS)
    return f"nets_of_{tmp_path.name}"


class TestSpecifiers:
    @pytest.mark.parametrize(
        ("text", "model", "options"),
        [
            ("a.onnx", "a.onnx", {}),
            ("nets:small,depth=20,wide=true,rate=0.5", "nets:small", {"depth": 20, "wide": True, "rate": 0.5}),
            ("a,b/net.pth,normalize=0.5/0.25", "a,b/net.pth", {"normalize": "0.5/0.25"}),
            ("hf:org/name,revision=main", "hf:org/name", {"revision": "main"}),
            ("nets:small,names=[1, 2]", "nets:small", {"names": "[1, 2]"}),
        ],
    )
    def test_options_follow_the_model(self, text, model, options):
        assert Specifier.parse(text) == Specifier(model, options)

    @pytest.mark.parametrize("text", ["a:b,x=1,x=2", ",x=1"])
    def test_what_means_nothing_is_refused(self, text):
        with pytest.raises(UsageError):
            Specifier.parse(text)

    def test_names_for_files(self):
        texts = ["a/b.safetensors", "a/folder/", "n.py:net,weights=w/r20.th", "http://host:80/v1/models/m:predict"]
        assert [short_name(text) for text in texts] == ["b", "folder", "r20", "predict"]


class TestFactories:
    def test_a_package_a_file_a_class_and_a_module(self, nets):
        assert isinstance(load_model(f"{nets}:Net"), nn.Linear)
        assert isinstance(load_model(f"{nets}.py:Net"), nn.Linear)
        assert load_model(f"{nets}:small,classes=3")[3].out_features == 3
        assert load_model(f"{nets}:ready") is load_model(f"{nets}:ready")

    def test_weights_come_from_a_file(self, nets, tmp_path):
        model = network()
        torch.save({"state_dict": {f"module.{name}": value for name, value in model.state_dict().items()}}, "w.th")
        loaded = open_model(f"{nets}:small,weights=w.th")
        assert same(loaded, model, inputs())
        assert (loaded.name, loaded.source["checkpoint"], len(loaded.source["sha256"])) == ("w", "w.th", 64)
        assert same(open_model("w.th", architecture=f"{nets}:small"), model, inputs())
        assert same(open_model(f"w.th,architecture={nets}.py:small"), model, inputs())

    def test_one_of_several_state_dicts_is_chosen_by_its_number(self, nets):
        first, second = network(), network()
        torch.nn.init.ones_(second[3].weight)
        torch.save({"state_dict": [first.state_dict(), second.state_dict()]}, "cascade.pth")
        assert same(open_model(f"{nets}:small,weights=cascade.pth,entry=1"), second, inputs())
        for text in ("", ",entry=2", ",entry=-1", ",entry=first"):
            with pytest.raises(CheckpointError, match="holds 2 state dicts; choose one by its number"):
                load_model(f"{nets}:small,weights=cascade.pth{text}")

    def test_a_file_that_was_moved_makes_the_same_model(self, nets, tmp_path):
        code = (
            "import sys; from smoothcert.models import load_model; import torch; torch.manual_seed(0)\n"
            "from smoothcert.classifiers.identity import model_identity; print(model_identity(load_model(sys.argv[1])))"
        )
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / f"{nets}.py").write_text(NETS)
        texts = (f"{nets}:Net", f"other/{nets}.py:Net")
        commands = ([sys.executable, "-c", code, text] for text in texts)
        assert len({subprocess.run(each, capture_output=True, check=True).stdout for each in commands}) == 1

    def test_two_files_of_one_name_are_not_mixed_up(self, nets, tmp_path):
        load_model(f"{nets}.py:small")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / f"{nets}.py").write_text(NETS)
        with pytest.raises(UsageError, match=r"another module .* rename"):
            load_model(f"other/{nets}.py:small")

    def test_the_identity_is_that_of_code_and_weights(self, nets):
        first, second = (load_model(f"{nets}:small,classes={classes}") for classes in (2, 3))
        assert model_identity(first) != model_identity(second)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("{nets}:other", "has no other; it has"),
            ("{nets}:number", "has the type int; name a function"),
            ("{nets}:small,depth=3", "cannot be called with these options"),
            ("{nets}:ready,depth=3", "is a model, not a function"),
            ("{nets}:broken", "raised ValueError: no such file"),
            ("{nets}:nn.Identity.forward", "cannot be called"),
            ("no_such_package:net", "cannot be imported: ModuleNotFoundError"),
            ("nowhere.py:net", "does not exist; give the path of a Python file"),
            ("{nets}:small,weights=nowhere.th", "there is no checkpoint at"),
        ],
    )
    def test_mistakes_are_explained_in_one_sentence(self, nets, text, said):
        with pytest.raises(SmoothcertError, match=said) as error:
            load_model(text.format(nets=nets))
        assert "\n" not in str(error.value)


class TestNormalization:
    @pytest.mark.parametrize("spec", ["0.5/0.25", "symmetric", "mnist", ((0.3,), (0.2,))])
    def test_it_becomes_a_part_of_the_model(self, nets, spec):
        loaded = open_model(f"{nets}:ready", normalize=spec)
        (mean,), (std,) = normalization(spec, 1)
        assert same(loaded, lambda x: load_model(f"{nets}:ready")((x - mean) / std), inputs())
        assert (loaded.normalize, loaded.preprocessing) == (((mean,), (std,)), "option")

    def test_bytes(self):
        assert normalization("bytes", 3) == ((0.0,) * 3, (1 / 255,) * 3)

    @pytest.mark.parametrize("text", ["0.5/0.5/0.5", "a/b", "0.5/0", "no-such-preset"])
    def test_others_are_refused(self, text):
        with pytest.raises(UsageError):
            normalization(text, 1)


def export(model: nn.Module, path, x: torch.Tensor, **options) -> None:
    """Write an ONNX file, by the older exporter unless the options say otherwise: it is a hundred times faster."""
    pytest.importorskip("onnxscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), path, verbose=False, **{"dynamo": False, **options})


FREE = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
NEWER = {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},)}


@functools.cache
def program(rows: int) -> bytes:
    """The network as torch.export saves it, with a free batch size if more than one row is given."""
    shapes = ({0: torch.export.Dim("batch")},) if rows > 1 else None
    file = io.BytesIO()
    torch.export.save(torch.export.export(network(), (inputs(rows),), dynamic_shapes=shapes), file)
    return file.getvalue()


class Last(nn.Module):
    """A network that takes images with channels last, and returns probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network(3)

    def forward(self, x):
        return self.network(x.permute(0, 3, 1, 2)).softmax(dim=1)


class TestOnnx:
    @pytest.mark.parametrize(("rows", "options"), [(3, NEWER), (3, FREE), (1, {}), (4, {})])
    def test_any_batch_size(self, tmp_path, rows, options):
        pytest.importorskip("onnxruntime")
        export(network(), tmp_path / "net.onnx", inputs(rows), **options)
        loaded = open_model(tmp_path / "net.onnx")
        assert same(loaded, network(), inputs(7))
        assert (loaded.num_classes, loaded.input_shape, loaded.name) == (10, (1, 8, 8), "net")
        assert certify(loaded.model, inputs()[0]).counts == certify(network(), inputs()[0]).counts

    def test_two_files_are_not_mixed_up(self, tmp_path):
        pytest.importorskip("onnxruntime")
        for seed in (0, 1):
            export(network(seed=seed), tmp_path / "net.onnx", inputs(1))
            assert same(open_model(tmp_path / "net.onnx"), network(seed=seed), inputs())

    def test_channels_last(self, tmp_path):
        pytest.importorskip("onnxruntime")
        export(Last().eval(), tmp_path / "net.onnx", inputs(2, 3).permute(0, 2, 3, 1).contiguous())
        loaded = open_model(tmp_path / "net.onnx")
        assert loaded.input_shape == (3, 8, 8)
        assert same(loaded, lambda x: network(3)(x).softmax(dim=1), inputs(5, 3))

    def test_half_precision(self, tmp_path):
        pytest.importorskip("onnxruntime")
        export(network().half(), tmp_path / "net.onnx", inputs(3).half(), **FREE)
        found = load_model(tmp_path / "net.onnx")(inputs())
        assert torch.allclose(found.float(), network()(inputs()), atol=0.01)

    def test_other_files_are_refused(self, tmp_path):
        pytest.importorskip("onnxruntime")
        (tmp_path / "net.onnx").write_bytes(b"not a graph")
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            load_model(tmp_path / "net.onnx")
        with pytest.raises(UsageError, match="no option depth"):
            load_model(f"{tmp_path / 'net.onnx'},depth=3")

    def test_the_identity_is_that_of_the_file(self, tmp_path):
        pytest.importorskip("onnxruntime")
        digests = set()
        for seed in (0, 0, 1):
            export(network(seed=seed), tmp_path / f"{seed}.onnx", inputs(1))
            digests.add(model_identity(load_model(tmp_path / f"{seed}.onnx"))["sha256"])
        assert len(digests) == 2


class TestPrograms:
    @pytest.mark.parametrize("rows", [1, 3])
    def test_torch_export(self, tmp_path, rows):
        (tmp_path / "net.pt2").write_bytes(program(rows))
        loaded = open_model(tmp_path / "net.pt2")
        assert same(loaded, network(), inputs(7))
        assert certify(loaded.model, inputs()[0]).counts == certify(network(), inputs()[0]).counts

    def test_torchscript(self, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(network(), inputs(2)).save(tmp_path / "net.pt")
        loaded = open_model(tmp_path / "net.pt")
        assert same(loaded, network(), inputs(7))
        assert certify(loaded.model, inputs()[0]).counts == certify(network(), inputs()[0]).counts

    @pytest.mark.parametrize("attack", ["sample inputs", "pickled weight", "opaque object", "expression", "twice"])
    def test_no_code_in_an_archive_runs(self, tmp_path, attack):
        (tmp_path / "good.pt2").write_bytes(program(3))

        class Evil:
            def __reduce__(self):
                return (Path.touch, (tmp_path / "was here",))

        pickled = pickle.dumps(Evil())
        with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "net.pt2", "w") as bad:
            for name in good.namelist():
                content = good.read(name)
                if attack == "sample inputs" and name.endswith(".pt"):
                    content = pickled
                if attack == "pickled weight" and name.endswith("weight_0"):
                    content = pickled
                if attack == "pickled weight" and name.endswith("weights_config.json"):
                    content = content.replace(b'"use_pickle": false', b'"use_pickle": true')
                if attack == "opaque object" and name.endswith("constants_config.json"):
                    held = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
                    content = json.dumps({"config": {"x": held}}).encode()
                    bad.writestr(name.rpartition("/")[0] + "/opaque_obj_0", pickled)
                if attack == "expression" and name.endswith("models/model.json"):
                    content = re.sub(rb'"expr_str": "[^"]*"', b'"expr_str": "exit(3)"', content)
                    assert b"exit(3)" in content
                bad.writestr(name, content)
            if attack == "twice":
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    bad.writestr(name, content)
        with pytest.raises(CheckpointError):
            load_model(tmp_path / "net.pt2")
        assert not (tmp_path / "was here").exists()
        assert same(open_model(tmp_path / "good.pt2"), network(), inputs(7))

    def test_damage(self, tmp_path):
        (tmp_path / "net.pt2").write_bytes(b"PK\x03\x04 nothing")
        with pytest.raises(CheckpointError, match="cannot be loaded as an exported program"):
            load_model(tmp_path / "net.pt2")


class TestHuggingFace:
    @pytest.fixture
    def folder(self, tmp_path):
        transformers = pytest.importorskip("transformers")
        config = transformers.ResNetConfig(
            num_channels=1, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], num_labels=3, image_size=8
        )
        torch.manual_seed(0)
        model = transformers.ResNetForImageClassification(config).eval()
        model.save_pretrained(tmp_path)
        processing = {"image_mean": [0.3], "image_std": [0.2], "size": {"height": 8, "width": 8}}
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processing))
        return tmp_path, model

    def test_preprocessing_is_part_of_the_model(self, folder):
        path, model = folder
        loaded = open_model(path)
        assert same(loaded, lambda x: model((x - 0.3) / 0.2).logits, inputs())
        assert (loaded.num_classes, loaded.input_shape, loaded.preprocessing) == (3, (1, 8, 8), "file")
        assert set(loaded.source["files"]) == {"config.json", "model.safetensors"}

    @pytest.mark.parametrize(
        ("changes", "right"),
        [
            ({"do_rescale": False}, lambda x: (255 * x - 0.3) / 0.2),
            ({"rescale_factor": 1 / 127.5, "rescale_offset": True}, lambda x: (2 * x - 1 - 0.3) / 0.2),
            ({"do_normalize": False}, lambda x: x),
            ({"do_normalize": False, "do_rescale": False}, lambda x: 255 * x),
        ],
    )
    def test_rescaling_is_part_of_the_model(self, folder, changes, right):
        path, model = folder
        file = path / "preprocessor_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
        assert same(open_model(path), lambda x: model(right(x)).logits, inputs())

    def test_another_normalisation_replaces_that_of_the_folder(self, folder):
        path, model = folder
        assert same(open_model(path, normalize="symmetric"), lambda x: model(2 * x - 1).logits, inputs())
        assert same(open_model(f"{path},normalize=none"), lambda x: model(x).logits, inputs())

    def test_an_object_certifies_as_it_is(self, folder):
        path, model = folder
        (path / "preprocessor_config.json").unlink()
        assert open_model(path).preprocessing == "unknown"
        assert certify(model, inputs()[0]).counts == certify(load_model(path), inputs()[0]).counts

    def test_other_models_are_refused(self, folder):
        path, _ = folder
        (path / "config.json").write_text('{"model_type": "bert"}')
        with pytest.raises(CheckpointError, match="is not an image classifier"):
            load_model(path)


class TestNumpy:
    def test_a_classifier_of_scikit_learn(self):
        from sklearn.linear_model import LogisticRegression
        from sklearn.svm import LinearSVC

        x, y = (part.numpy() for part in data.load("digits", split="train").arrays())
        x = x.reshape(len(x), -1)
        image = data.load("digits")[0][0]
        for kind in (LogisticRegression(max_iter=200), LinearSVC(), LinearSVC()):
            classes = y if kind.__class__ is LogisticRegression else y % 2 + 5
            fitted = kind.fit(x, classes)
            predicted = fitted.classes_[int(from_numpy(fitted)(image[None]).argmax())]
            assert predicted == fitted.predict(image.numpy().reshape(1, -1))[0]
            assert certify(from_numpy(fitted), image).label == from_numpy(fitted)(image[None]).argmax()

    def test_functions_of_scores_and_of_classes(self):
        scores = from_numpy(lambda rows: np.stack([rows.sum((1, 2, 3)), 32 - rows.sum((1, 2, 3))], 1), num_classes=2)
        classes = from_numpy(lambda rows: (rows.sum((1, 2, 3)) < 16).astype(int), num_classes=2)
        x = inputs(40)
        assert torch.equal(scores(x).argmax(1), classes(x).argmax(1))
        assert certify(classes, x[0]).label == int(classes(x[:1]).argmax())

    @pytest.mark.parametrize("returned", [np.zeros(5), np.full(5, 7), np.zeros((5, 3)), np.zeros((4, 2))])
    def test_other_shapes_are_refused(self, returned):
        with pytest.raises(UsageError, match="the function returned"):
            from_numpy(lambda rows: returned, num_classes=2)(inputs())

    def test_the_number_of_classes_is_needed(self):
        with pytest.raises(UsageError, match="give num_classes"):
            from_numpy(np.sum)
        with pytest.raises(UsageError, match="not a int"):
            from_numpy(3)


class Server(http.server.BaseHTTPRequestHandler):
    """An endpoint that is overloaded at first, or answers something else."""

    sizes: ClassVar[list[int]] = []
    codes: ClassVar[list[int]] = []
    seed = 0

    def do_POST(self):
        rows = torch.tensor(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"])
        code = self.codes.pop() if self.codes else 200
        self.sizes.append(len(rows))
        answer = {"predictions": network(seed=self.seed)(rows).tolist()} if "net" in self.path else {"error": "what?"}
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


class TestEndpoints:
    @pytest.fixture
    def address(self, monkeypatch):
        monkeypatch.setattr("smoothcert.models.sources.endpoint._WAITS", (0.01, 0.01))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        Server.sizes, Server.codes = [], []
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        server.server_close()

    def test_scores_come_in_batches_and_after_retries(self, address):
        Server.codes = [503, 429]
        loaded = open_model(f"{address}/net,batch_size=3")
        with torch.inference_mode():
            assert torch.allclose(loaded.model(inputs(7)), network()(inputs(7)), atol=1e-5)
        assert Server.sizes == [3, 3, 3, 3, 1]
        loaded = open_model(f"{address}/net")
        assert certify(loaded.model, inputs()[0]).counts == certify(network(), inputs()[0]).counts

    @pytest.mark.parametrize(("code", "path", "said"), [(404, "net", "answers 404"), (200, "x", "must answer")])
    def test_failures_are_one_sentence(self, address, code, path, said):
        Server.codes = [code]
        with pytest.raises(SmoothcertError, match=said):
            load_model(f"{address}/{path}")(inputs())

    def test_a_model_that_is_replaced_meanwhile_gets_no_certificate(self, address, monkeypatch):
        smoothed = sc.Smoothed(load_model(f"{address}/net"), sc.Gaussian(0.1))
        procedure = sc.Cohen(n0=10, n=100)
        smoothed.certify(inputs()[0], procedure, seed=0)
        monkeypatch.setattr(Server, "seed", 1)
        with pytest.raises(SmoothcertError, match="the model changed"):
            smoothed.certify(inputs()[0], procedure, seed=0)

    @pytest.mark.parametrize("name", ["gone.onnx", "gone.pt2", "gone.safetensors"])
    def test_a_missing_file_is_a_mistake_of_the_caller(self, name):
        with pytest.raises(CheckpointError, match="there is no checkpoint at") as error:
            load_model(name)
        assert error.value.exit_code == 2

    def test_no_server(self, monkeypatch):
        monkeypatch.setattr("smoothcert.models.sources.endpoint._WAITS", (0.01, 0.01))
        with pytest.raises(SmoothcertError, match="cannot be reached"):
            models.load_model("http://127.0.0.1:9/net,timeout=0.1")(inputs())

"""Models on the Hugging Face hub, in local folders and with a hub that is a folder."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import smoothcert as sc
from smoothcert.models.sources import huggingface

pytest.importorskip("huggingface_hub")
hub = pytest.importorskip("smoothcert.hub")
HubModel = hub.HubModel
INFO = sc.CheckpointInfo.of("digits-cnn", sigma=0.25)


class MyNet(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(64, width)

    def forward(self, x):
        return self.layer(x.flatten(1))


@pytest.fixture(scope="module")
def digits():
    return sc.data.load("digits", split="test")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return sc.models.build("digits-cnn")


@pytest.fixture(scope="module")
def finished(model, digits, tmp_path_factory):
    smoothed = sc.Smoothed(model, sc.Gaussian(0.25))
    folder = tmp_path_factory.mktemp("runs") / "digits"
    return sc.certify_dataset(smoothed, digits, sc.Cohen(200), run=folder, every=60, progress=False)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_a_registered_model_comes_back(model, tmp_path):
    HubModel(model, INFO, dataset="digits").save_pretrained(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    again = HubModel.from_pretrained(tmp_path)
    assert same_weights(again.model, model)
    assert (again.info, again.noise, again.dataset) == (INFO, sc.Gaussian(0.25), "digits")
    assert not again.model.training
    assert again.smoothed(runtime="eager").noise == sc.Gaussian(0.25)
    for loaded in (sc.load_model(tmp_path), sc.load_model(f"hf:{tmp_path}")):
        assert same_weights(loaded, model)


def test_a_module_of_ones_own_comes_back(tmp_path):
    model = MyNet()
    HubModel(model, noise=sc.Uniform(0.5)).save_pretrained(tmp_path)
    for architecture in (MyNet, MyNet(), lambda: MyNet(3)):
        again = HubModel.from_pretrained(tmp_path, architecture=architecture)
        assert same_weights(again.model, model)
        assert again.noise == sc.Uniform(0.5)
    with pytest.raises(sc.UsageError, match="MyNet, a module of somebody's own code; give architecture"):
        HubModel.from_pretrained(tmp_path)
    with pytest.raises(sc.CheckpointError, match="shape"):
        HubModel.from_pretrained(tmp_path, architecture=MyNet(4))
    with pytest.raises(sc.UsageError, match="must make a torch"):
        HubModel.from_pretrained(tmp_path, architecture=lambda: 3)
    with pytest.raises(sc.UsageError, match="noise of the training is unknown"):
        HubModel(model).smoothed()


def test_the_card_states_what_was_certified(model, finished, tmp_path):
    HubModel(model, INFO, dataset="digits", run=finished).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for text in (
        "library_name: smoothcert",
        "Architecture: digits-cnn",
        "Training data: digits",
        "Training noise: `Gaussian(sigma=0.25)`",
        "9 inputs of digits test",
        "alpha = 0.001, n0 = 100, n = 200",
        sc.report.table(finished, intervals=True, marks=False).splitlines()[2],
    ):
        assert text in card
    assert "[" in card.partition("| ACR")[2]  # intervals


def test_the_command_on_the_card_repeats_the_run(model, finished, tmp_path, run, monkeypatch):
    HubModel(model, INFO, run=finished).save_pretrained(tmp_path)
    (command,) = re.findall(r"```bash\n(.*)\n```", (tmp_path / "README.md").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*shlex.split(command)[1:], "--run", "again")
    assert code == 0, err
    again = sc.load_run("again")
    assert again.config["procedure"] == finished.config["procedure"]
    columns = ["index", "predict", "radius", "counts"]
    assert again.table(columns).to_pylist() == finished.table(columns).to_pylist()


def test_a_card_is_never_about_another_model(model, finished, digits, tmp_path):
    torch.manual_seed(1)
    other = sc.models.build("digits-cnn")
    with pytest.raises(sc.UsageError, match="about another model"):
        HubModel(other, INFO, run=finished)
    HubModel(model, INFO, run=finished).save_pretrained(tmp_path)
    HubModel(other, INFO).save_pretrained(tmp_path)  # into the same folder
    assert "Certified accuracy" not in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_card_is_about_the_model_alone(digits, tmp_path):
    noise, x = sc.Gaussian(0.25), [(digits[0][0], 0)]
    two = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    plain = sc.Smoothed(two, noise)
    for number, (smoothed, procedure) in enumerate(
        (
            (sc.Smoothed(two, noise, experts=(plain, sc.Smoothed(two, sc.Gaussian(0.5)))), sc.Cohen(20)),
            (sc.Smoothed(two, noise, sigma=sc.GridSigma((0.1, 0.2))), sc.Cohen(20)),
            (plain, sc.Aces(two, n=20)),
        )
    ):
        run = sc.certify_dataset(smoothed, x, procedure, run=tmp_path / str(number), progress=False)
        with pytest.raises(sc.UsageError, match="of this model alone"):
            HubModel(two, run=run)


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_normalisation_is_applied_once(tmp_path, digits, prefix):
    info = sc.CheckpointInfo.of("digits-cnn", sigma=0.25, normalize=((0.5,), (0.25,)))
    model = sc.models.build("digits-cnn", normalize=((0.5,), (0.25,))).eval()
    HubModel(model, info).save_pretrained(tmp_path)
    x = digits[0][0][None]
    for loaded in (sc.load_model(f"{prefix}{tmp_path}"), HubModel.from_pretrained(tmp_path).model):
        assert torch.equal(loaded(x), model(x))


def test_an_unfinished_run_is_refused(model, finished, tmp_path):
    copy = Path(shutil.copytree(finished.path, tmp_path / "run"))
    run = sc.load_run(copy)
    part = next(copy.glob("part-*.parquet"))
    from smoothcert.store import parts

    rows = parts.read_part(part).slice(0, 3)
    owner = parts.part_config(part)
    part.unlink()
    parts.write_part(part, rows, owner)
    with pytest.raises(sc.UsageError, match="3 of 9 inputs; finish it first"):
        HubModel(model, INFO, run=run)


def test_the_noise_must_be_that_of_the_metadata(model):
    with pytest.raises(sc.UsageError, match="was trained with Gaussian"):
        HubModel(model, INFO, noise=sc.Gaussian(0.5))
    assert HubModel(model, INFO, noise=sc.Gaussian(0.25, grid=255)).noise.grid == 255


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = MyNet()
    with torch.no_grad():
        model.layer.bias[0] = torch.nan
    with pytest.raises(sc.CheckpointError, match="not finite"):
        HubModel(model).save_pretrained(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        "[]",
        "{",
        "{}",
        json.dumps({"library_name": "smoothcert", "smoothcert": []}),
        json.dumps({"library_name": "smoothcert", "smoothcert": {"architecture": "x", "noise": {"name": "other"}}}),
        json.dumps({"library_name": "smoothcert", "smoothcert": {"architecture": "x", "noise": 3}}),
        "[" * 100_000,
        None,
    ],
)
def test_damaged_configurations_are_refused(model, tmp_path, config):
    HubModel(model, INFO).save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(sc.CheckpointError) as error:
        HubModel.from_pretrained(tmp_path)
    assert "\n" not in str(error.value)


def test_a_configuration_cannot_pass_arguments(model, tmp_path):
    HubModel(model, INFO).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    hostile = {"model": "x", "info": 1, "run": "/etc", "dataset": "other", "noise": {}, "architecture": "os:system"}
    (tmp_path / "config.json").write_text(json.dumps({**hostile, **config}))
    again = HubModel.from_pretrained(tmp_path)
    assert (again.info, again.noise, again.dataset, again.run) == (INFO, sc.Gaussian(0.25), None, None)


def test_nothing_is_unpickled(model, tmp_path, monkeypatch):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    HubModel(MyNet()).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(sc.CheckpointError):
        HubModel.from_pretrained(tmp_path, architecture=MyNet)
    assert not (tmp_path / "exploded").exists()


def test_folders_of_transformers_are_still_theirs(tmp_path, model):
    HubModel(model, INFO).save_pretrained(tmp_path)
    assert not huggingface.is_huggingface(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    assert huggingface.is_huggingface(tmp_path)


def test_push_and_pull(model, finished, tmp_path, monkeypatch):
    remote = tmp_path / "remote"

    class Api:
        def __init__(self, token=None):
            pass

        def create_repo(self, repo_id, **options):
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, *, repo_id, folder_path, **options):
            shutil.copytree(folder_path, remote / repo_id)
            return f"https://hub/{repo_id}"

    def download(repo_id, filename, **options):
        return str(remote / repo_id / filename)

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr(hub, "hf_hub_download", download)
    assert HubModel(model, INFO, run=finished).push_to_hub("me/digits") == "https://hub/me/digits"
    assert sorted(file.name for file in (remote / "me/digits").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert same_weights(HubModel.from_pretrained("me/digits").model, model)
    assert same_weights(sc.load_model("hf:me/digits"), model)
    with pytest.raises(sc.CheckpointError, match="'me/other' is not a model that can be loaded"):
        HubModel.from_pretrained("me/other")

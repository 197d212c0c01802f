"""Real files to begin with, made by smoothcert itself: small, and the same every time."""

from __future__ import annotations

import functools
import gzip
import io
import pickle
import struct
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import torch
from PIL import Image

from fuzzing.formats import npy_bytes
from fuzzing.harness import Files
from smoothcert import Certificate, Gaussian, Guarantee, Norm
from smoothcert.certify.memory import Memory
from smoothcert.models import CheckpointInfo, build, build_denoiser, save_checkpoint
from smoothcert.sampling import BLOCK
from smoothcert.store import read_log, write_run
from smoothcert.store.rows import Row, certificate_row
from smoothcert.store.run import open_run
from smoothcert.training.recipes import load_recipe, recipe_to_yaml
from smoothcert.training.resume import Progress, Trained, save_progress
from smoothcert.training.run import soft_labels
from smoothcert.types import Outcome, Routing


def files_of(folder: Path) -> Files:
    """The files in a folder, but for locks."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.endswith("lock")
    }


def network() -> torch.nn.Module:
    """A small network whose weights are the same every time."""
    torch.manual_seed(0)
    return build("digits-cnn", num_classes=3)


def checkpoints(work: Path) -> list[Files]:
    settings: list[dict[str, Any]] = [
        {},
        {"normalize": "mnist", "noise": {"name": "gaussian", "sigma": 0.5}, "extra": {"recipe": {"epochs": 3}}},
    ]
    found = []
    for chosen in settings:
        torch.manual_seed(0)
        model = build("digits-cnn", num_classes=3, normalize=chosen.get("normalize"))
        save_checkpoint(work / "m.safetensors", model, CheckpointInfo.of("digits-cnn", num_classes=3, **chosen))
        found.append({"m.safetensors": (work / "m.safetensors").read_bytes()})
    torch.manual_seed(0)
    denoiser = save_checkpoint(work / "d.safetensors", build_denoiser("dncnn-small"), CheckpointInfo.of("dncnn-small"))
    return [*found, {"m.safetensors": denoiser.read_bytes()}]


def foreign(work: Path) -> list[Files]:
    state = network().state_dict()
    front = {"0.mean": torch.tensor([0.1]), "0.std": torch.tensor([0.3])}
    contents = [
        {"arch": "digits-cnn", "epoch": 3, "state_dict": {f"module.{name}": value for name, value in state.items()}},
        {"arch": "digits-cnn", "state_dict": front | {f"1.module.{name}": value for name, value in state.items()}},
        {"arch": "digits-cnn", "net": dict(state), "optimizer": {"lr": 0.1, "betas": (0.9, 0.99), "groups": [1, None]}},
    ]
    return [{"m.pth.tar": saved(content, new)} for content in contents for new in (True, False)]


def saved(content: object, new: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=new)
    return stream.getvalue()


LOGS = {
    "certification": "idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t0.486\t1\t0:01:18.206684\n"
    "20\t1\t-1\t0.0\t0\t1 day, 0:00:03.5\n40\t2\t1\t1.25\t0\t16.6\n",
    "natural": "idx\tlabel\tpredict\tradius\tcorrect\tunperturbed predict\tunperturbed correct\ttime\n"
    "0\t0\t0\t0.5\t1\t0\t1\t0:00:01\n1\t1\t-1\t0.0\t0\t1\t1\t0:00:02\n2\t2\t2\t0.25\t1\t0\t0\t0:00:03\n",
    "selection": "idx\tpredict\tradius\tunperturbed predict\ttime\n0\t1\t0.4\t1\t0:00:01\n1\t0\t0.2\t0\t0:00:01\n"
    "2\t-1\t0.0\t1\t0:00:01\n",
    "prediction": "idx\tlabel\tpredict\tcorrect\ttime\n0\t0\t0\t1\t0:00:01\n1\t1\t2\t0\t0:00:01\n2\t2\t2\t1\t0:00:01\n",
    "entropies": "idx\tmean\tstd\tmin\t25 percentile\t50 percentile\t75 percentile\tmax\n"
    "0\t0.1\t0.01\t0\t0.05\t0.1\t0.2\t0.9\n1\t0.5\t0.2\t0\t0.2\t0.4\t0.8\t1e0\n2\t.3\t0\t0\t0\t0\t0\t0\n",
}


def logs(work: Path) -> list[Files]:
    return [{"sigma_0.50.tsv": text.encode()} for text in LOGS.values()]


def aces_logs(work: Path) -> list[Files]:
    files = {
        "set_certification": LOGS["natural"],
        "set_selection_0.00": LOGS["selection"],
        "set_selection_0.50": LOGS["selection"],
        "set_entropies": LOGS["entropies"],
        "core": LOGS["prediction"],
    }
    return [{name: text.encode() for name, text in files.items()}]


def row(index: int, **changes: Any) -> Row:
    """A row of a run, as a procedure would give it."""
    settings: dict[str, Any] = {
        "label": index % 3,
        "radius": 0.1 + index / 10,
        "norm": Norm.L2,
        "guarantee": Guarantee.GLOBAL,
        "alpha": 0.001,
        "alpha_split": {"top class": 0.001},
        "n": 1000,
        "counts": tuple(980 if label == index % 3 else 10 for label in range(3)),
        "p_lower": 0.9,
        "n0": 100,
        "selection": tuple(98 if label == index % 3 else 1 for label in range(3)),
        "noise": "Gaussian(sigma=0.5)",
        "seed": 0,
        "index": index,
        "outcome": Outcome.CERTIFIED,
        "checkpoints": {10: (10, 0, 0), 100: (98, 1, 1)},
    }
    return certificate_row(Certificate(**{**settings, **changes}), label=index % 3, seconds=0.5)


CONFIG: dict[str, Any] = {
    "kind": "certification",
    "procedure": {"name": "cohen", "n0": 100, "n": 1000, "alpha": 0.001, "norm": "l2"},
    "noise": {"name": "gaussian", "sigma": 0.5},
    "stream": {"block": BLOCK, "device": "cpu"},
    "seed": 0,
    "model": {"class": "DigitsCNN", "sha256": "0" * 64},
    "precision": "float32",
    "num_classes": 3,
    "input_range": [0.0, 1.0],
    "data": {"name": "digits", "split": "test", "size": 500, "sha256": "1" * 64},
    "inputs": {"every": 1, "start": 0, "stop": 4},
}
SESSION = {
    "started": "2024-01-01T00:00:00+00:00",
    "versions": {"torch": "2.4"},
    "device": "cpu",
    "source": {"path": "m"},
}


def runs(work: Path) -> list[Files]:
    routing = Routing(
        choice=1, radius=0.3, p_lower=0.9, n=1000, counts=(5, 5, 990), n0=100, selection=(1, 1, 98), core=1
    )
    aces = {**CONFIG["procedure"], "name": "aces", "theta": 0.5}
    kinds: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (CONFIG, {}),
        ({**CONFIG, "procedure": aces}, {"routing": routing, "guarantee": Guarantee.ROUTED}),
        (
            {**CONFIG, "procedure": {"name": "anytime", "radius": 0.25, "alpha": 0.001, "beta": 0.01, "n_max": 1000}},
            {"decisions": {0.25: Outcome.CERTIFIED}, "checkpoints": {}},
        ),
        ({**CONFIG, "inputs": {"every": 1, "start": 0, "stop": 4, "shard": [1, 1]}}, {}),
    ]
    found = []
    for number, (config, changes) in enumerate(kinds):
        folder = work / f"run-{number}"
        with open_run(folder, config, SESSION) as writer:
            for index in range(4):
                writer.append(row(index, **changes))
                if index == 1:
                    writer.seal()
        found.append(files_of(folder))
    (work / "log").write_text(LOGS["natural"])
    log = read_log(work / "log")
    imported = {"kind": f"imported {log.kind.value}", "source": "log", "columns": list(log.columns)}
    write_run(work / "imported", log.table, imported, {"note": "radii as logged by the earlier system"})
    return [*found, files_of(work / "imported")]


def selections(work: Path) -> list[Files]:
    first, *_ = runs(work)
    return [{f"{name}/{file}": data for name in ("a", "b") for file, data in first.items()}]


def recipes(work: Path) -> list[Files]:
    names = ("mnist-catrs-0.50", "mnist-gaussian-0.25", "mnist-smoothmix-0.50", "mnist-macer-0.50")
    return [{"r.yaml": recipe_to_yaml(load_recipe(name)).encode()} for name in names]


@functools.cache
def parts() -> Files:
    """The models of compositions, which are not changed."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for name, classes in (("a", 10), ("b", 10), ("s", 2)):
            info = CheckpointInfo.of("digits-cnn", num_classes=classes, sigma=0.25)
            save_checkpoint(work / f"{name}.safetensors", build("digits-cnn", num_classes=classes), info)
        info = CheckpointInfo.of("dncnn-small", sigma=0.25)
        save_checkpoint(work / "d.safetensors", build_denoiser("dncnn-small"), info)
        return files_of(work)


def compositions(work: Path) -> list[Files]:
    """A file of each kind."""
    texts = (
        b"kind: ensemble\nmembers:\n- a.safetensors\n- b.safetensors\nvote: weighted\nweights: [0.6, 0.4]\n",
        b"kind: consensus\nmembers: [a.safetensors, b.safetensors]\nfirst: 1\nmargin: 0.5\n",
        b"kind: denoised\nmodel: {kind: ensemble, members: [a.safetensors, b.safetensors]}\ndenoiser: d.safetensors\n",
        b"kind: routed\nselector: s.safetensors\nnoise: {name: gaussian, sigma: 0.5}\nexperts:\n"
        b"- {model: a.safetensors, noise: {name: uniform, lam: 0.5}}\n- core: b.safetensors\n",
        b"kind: aces\nmodel: a.safetensors\ncore: b.safetensors\nselector: s.safetensors\ntheta: 0.3\n",
    )
    return [{"c.yaml": text} for text in texts]


def images(work: Path) -> list[Files]:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    alpha = picture.convert("RGBA")
    found = []
    for suffix, image, settings in (
        ("png", picture, {}),
        ("png", alpha, {}),
        ("png", picture.convert("P"), {"transparency": 0}),
        ("jpg", picture, {}),
        ("jpg", picture, {"progressive": True}),
        ("jpg", picture.convert("CMYK"), {}),
        ("gif", picture, {}),
        ("bmp", picture, {}),
        ("tif", picture, {"compression": "tiff_lzw"}),
        ("webp", picture, {}),
        ("ppm", picture, {}),
    ):
        stream = io.BytesIO()
        image.save(stream, {"jpg": "jpeg", "tif": "tiff"}.get(suffix, suffix), **settings)
        found.append({f"class/x.{suffix}": stream.getvalue()})
    return found


def labelled_images(work: Path) -> list[Files]:
    found = {name: content for files in images(work) for name, content in files.items()}
    image, other, names = found["class/x.png"], found["class/x.tif"], b"cat\ndog\n"
    table = b"file,label\na.png,dog\nsub/b.tif,0\n"
    return [{"a.png": image, "sub/b.tif": other, "labels.csv": table, "names.txt": names}]


def tables(work: Path) -> list[Files]:
    text = b"a,b,kind\n1,0.5,x\n2,-3e4,y\n3,0,x\n"
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(io.BytesIO(text)), stream)
    return [{"t.csv": text}, {"t.csv": text.replace(b"x", b"0").replace(b"y", b"1")}, {"t.parquet": stream.getvalue()}]


def npz(work: Path) -> list[Files]:
    pick = np.random.default_rng(0)
    x = pick.integers(0, 256, (4, 5, 5, 3), dtype=np.uint8)
    y = np.arange(4)
    contents: list[dict[str, Any]] = [
        {"x": x, "y": y, "class_names": np.array(["a", "b", "c", "d"])},
        {"images": (x[..., 0] / 255).astype(np.float32), "labels": y[:, None].astype(np.uint8)},
        {"train_images": x, "train_labels": y[:, None], "test_images": x[:2], "test_labels": y[:2, None]},  # MedMNIST
    ]
    found = []
    for content in contents:
        for save in (np.savez, np.savez_compressed):
            stream = io.BytesIO()
            save(stream, **content)
            found.append({"d.npz": stream.getvalue()})
    return found


def idx(work: Path) -> list[Files]:
    images = struct.pack(">4I", 0x803, 3, 28, 28) + bytes(range(256)) * 9 + bytes(48)
    labels = struct.pack(">2I", 0x801, 3) + bytes([0, 5, 9])
    plain = {"mnist/t10k-images-idx3-ubyte": images, "mnist/t10k-labels-idx1-ubyte": labels}
    return [plain, {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in plain.items()}]


def cifar(work: Path) -> list[Files]:
    record = bytes([7]) + bytes(range(256)) * 12
    pixels = np.frombuffer(record[1:] * 2, np.uint8).reshape(2, 3072)
    content = {b"batch_label": b"testing", b"labels": [7, 3], b"data": pixels, b"filenames": [b"a.png", b"b.png"]}
    pickles = [{"cifar10/test_batch": pickle.dumps(content, protocol)} for protocol in (2, 4)]
    return [{"cifar10/test_batch.bin": record * 2}, *pickles]


def published(work: Path) -> list[Files]:
    images = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    labels = np.tile(np.arange(2, dtype=np.uint8), 5)
    return [{"cifar10-c/fog.npy": npy_bytes(images), "cifar10-c/labels.npy": npy_bytes(labels)}]


def archives(work: Path) -> list[Files]:
    members = {"set/a.bin": bytes(600), "set/deep/b.bin": b"text", "c.bin": b""}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    tar = packed_tar([tar_member(name, data) for name, data in members.items()])
    found: list[Files] = [{"x.zip": stream.getvalue()}, {"x.tar": tar}, {"x.tar.gz": gzip.compress(tar, mtime=0)}]
    return [{**files, "outside.txt": b"left alone"} for files in found]


def tar_member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = len(data), kind, link
    return member, data


def packed_tar(members: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar file with these members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def memories(work: Path) -> list[Files]:
    folder = work / "memory"
    folder.mkdir()
    memory = Memory(folder / "m.safetensors")
    memory.bind({"model": "0" * 64, "noise": {"name": "gaussian", "sigma": 0.5}})
    for place in range(3):
        memory.admit(torch.full((4,), float(place)), place, 0.5)
    memory.save()
    saved = files_of(folder)
    for place in range(3, 6):
        memory.admit(torch.full((4,), float(place)), place, 0.5)
    memory.close()
    both = files_of(folder)
    journal = {name: data for name, data in both.items() if name.endswith(".journal")}
    alone = {
        name: data.replace(b"[3, ", b"[0, ").replace(b"[4, ", b"[1, ").replace(b"[5, ", b"[2, ")
        for name, data in journal.items()
    }
    return [saved, both, alone]


def labels_of(folder: Path) -> torch.Tensor:
    """Soft labels of four inputs, kept in a folder."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    x = torch.linspace(0, 1, 16).reshape(4, 1, 2, 2)
    return soft_labels(model, x, Gaussian(0.5), n=20, num_classes=3, folder=folder, progress=False)


def soft_label_folders(work: Path) -> list[Files]:
    labels_of(work / "labels")
    return [files_of(work / "labels")]


IDENTITY = {"optimizer": "sgd", "recipe": {"epochs": 2, "method": {"name": "gaussian"}}, "seed": 0}


def trainer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A small model in training, after one step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.eye(4)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def trainings(work: Path) -> list[Files]:
    model, optimizer = trainer()
    progress = Progress(1, 0.5, [{"epoch": 1, "loss": 0.25}], {})
    save_progress(work, IDENTITY, progress, Trained(model, optimizer, model, torch.ones(5)))
    return [{"training.safetensors": (work / "training.safetensors").read_bytes()}]

"""Every kind of file that smoothcert reads, with the public function that reads it; a new one is one entry here."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from fuzzing import formats, hostile, seeds
from fuzzing.harness import Escaped, Kind
from smoothcert import data
from smoothcert.certify.memory import Memory
from smoothcert.compositions import open_classifier, read_composition, write_composition
from smoothcert.data.archive import unpack
from smoothcert.data.loading import load_published
from smoothcert.models import describe, load_checkpoint, load_denoiser
from smoothcert.report.aces import load_components, load_single
from smoothcert.report.page.groups import groups
from smoothcert.report.page.html import embedded_json
from smoothcert.report.page.payload import group_payload
from smoothcert.report.recompute import load_outcomes, outcomes_of
from smoothcert.report.tables.accuracy import accuracy_table, render
from smoothcert.report.tables.aces import aces_table, render_aces
from smoothcert.store import LogKind, find_results, load_run, merge_runs, open_run, read_log
from smoothcert.store.noisy_copies import noisy_copies
from smoothcert.store.rows import Row
from smoothcert.store.selector_labels import best_of, certifiable
from smoothcert.training.recipes import load_recipe, recipe_to_yaml
from smoothcert.training.resume import Trained, load_progress
from smoothcert.types import CheckpointError, SmoothcertError, UsageError


def read_checkpoint(folder: Path) -> None:
    checkpoint = load_checkpoint(folder / "m.safetensors")
    checkpoint.model(torch.zeros(1, checkpoint.info.input_shape[0], 8, 8))
    describe(folder / "m.safetensors").as_dict()


def read_foreign(folder: Path) -> None:
    with suppress(CheckpointError):
        load_denoiser(folder / "m.pth.tar")
    checkpoint = load_checkpoint(folder / "m.pth.tar")
    checkpoint.model(torch.zeros(1, checkpoint.info.input_shape[0], 8, 8))


def read_log_file(folder: Path) -> None:
    path = folder / "sigma_0.50.tsv"
    log = read_log(path)
    log.table.to_pylist()
    if log.kind is LogKind.CERTIFICATION:
        table = accuracy_table(load_outcomes([path]))
        for form in ("md", "html", "latex", "csv"):
            render(table, form)
        show([path])


def read_aces(folder: Path) -> None:
    parts = load_components(folder / "set", folder / "core", thetas=[0.0])
    render_aces(aces_table([parts]), "md")
    load_single(folder / "set_certification")


def show(paths: list[Path]) -> None:
    """What the report page would hold."""
    for group in groups(find_results(paths)):
        embedded_json(group_payload(group, None))


def read_run(folder: Path) -> None:
    """Look at a run in every way; one refusal does not keep the others from being tried."""
    run = load_run(folder)
    rows: list[Row] = []

    def listed() -> None:
        rows.extend(run.rows())

    def tables() -> None:
        render(accuracy_table([outcomes_of(run)]), "md", intervals=True)

    def recomputed() -> None:
        with suppress(UsageError):  # most kinds of runs cannot be
            outcomes_of(run, n=100)

    def united() -> None:
        with suppress(UsageError):  # most are no shards
            merge_runs([folder], folder / "united")

    def copied() -> None:
        with suppress(UsageError):  # an imported log was answered without noise
            for row in rows[:1]:
                noisy_copies(run, row, torch.zeros(1, 2, 2), 2)

    def resumed() -> None:
        with open_run(folder, run.config, seeds.SESSION) as writer:
            writer.seal()

    refused: SmoothcertError | None = None
    for use in (listed, tables, recomputed, lambda: show([folder]), united, copied, resumed):
        try:
            use()
        except SmoothcertError as error:
            refused = refused or error
    if refused is not None:
        raise refused


def read_selection(folder: Path) -> None:
    certifiable(load_run(folder / "a"))
    best_of([load_run(folder / "a"), load_run(folder / "b")])


def read_recipe(folder: Path) -> None:
    recipe_to_yaml(load_recipe(folder / "r.yaml"))


def read_composed(folder: Path) -> None:
    """Read a composition next to its models, write it again, and run what it describes."""
    for name, content in seeds.parts().items():
        (folder / name).write_bytes(content)
    write_composition(folder / "again.yaml", read_composition(folder / "c.yaml").composition)
    opened = open_classifier(folder / "c.yaml")
    opened.as_dict()
    opened.smoothed()
    for each in opened.parts.values() or (opened.base,):
        each.model(torch.zeros(1, 1, 8, 8))


def read_images(folder: Path) -> None:
    dataset = data.load(folder)
    for index in range(len(dataset)):
        dataset[index]


def read_labelled_images(folder: Path) -> None:
    dataset = data.load(f"{folder},classes=names.txt,size=8")
    for index in range(len(dataset)):
        dataset[index]


def read_table(folder: Path) -> None:
    for path in folder.glob("t.*"):
        dataset = data.load(f"{path},label=kind")
        dataset[0]
        dataset[len(dataset) - 1]


def read_npz(folder: Path) -> None:
    dataset = data.load(folder / "d.npz")
    dataset[0]
    dataset[len(dataset) - 1]


def read_named(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        dataset = data.load(name, root=folder)
        dataset[0]
        dataset[len(dataset) - 1]

    return read


def read_published(folder: Path) -> None:
    info = dataclasses.replace(data.DATASETS["cifar10-c"], test_size=2)  # the real sizes would need real sizes
    dataset = load_published(info, ["fog", "3"], "test", folder)
    dataset[0], dataset[1]


def read_archive(folder: Path) -> None:
    """Unpack into a folder next to which nothing may change."""
    inner = folder / "data"
    inner.mkdir()
    before = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    try:
        for archive in folder.glob("x.*"):
            unpack(archive, inner)
    finally:
        after = {file: file.read_bytes() for file in folder.iterdir() if file != inner}
        if before != after or any(file.is_symlink() for file in inner.rglob("*")):
            raise Escaped("the archive wrote outside its folder, or a link")


def read_memory(folder: Path) -> None:
    memory = Memory(folder / "m.safetensors")
    try:
        memory.admit(torch.tensor([0.2, 0.0, 0.0, 0.0]), 1, 0.25)
        memory.save()
    finally:
        memory.close()


def read_training(folder: Path) -> None:
    model, optimizer = seeds.trainer()
    load_progress(folder, seeds.IDENTITY, Trained(model, optimizer, copy.deepcopy(model), torch.ones(5)))
    model(torch.eye(4)).square().sum().backward()
    optimizer.step()


_PICKLE = (
    b"cos\nsystem\n",
    b"c__builtin__\neval\n",
    b"\x8c\x02os\x8c\x06system\x93",
    b"R",
    b"\x81",
    b"b",
    b".",
    b"\x95",
)
_RUN = {"run.json": formats.json_file, "pending.jsonl": formats.json_lines}
_SEALED = {
    "*run.json": formats.sealed_info,
    "*.parquet": formats.sealed_part,
    "*pending.jsonl": formats.sealed_pending,
}

KINDS = (
    Kind("checkpoints", seeds.checkpoints, read_checkpoint, {"*": formats.safetensors_file}),
    Kind(
        "foreign checkpoints",
        seeds.foreign,
        read_foreign,
        {"*": formats.zip_file(lambda name: formats.pickled if name.endswith("data.pkl") else None)},
        hostile.foreign_hostile,
        _PICKLE,
    ),
    Kind("logs", seeds.logs, read_log_file, {"*": formats.text_table}, share=0.7),
    Kind("logs of ACES", seeds.aces_logs, read_aces, {"*": formats.text_table}, share=0.7),
    Kind("run folders", seeds.runs, read_run, _RUN),
    Kind("run folders, sealed again", seeds.runs, read_run, _SEALED, share=1.0),
    Kind("runs for a selector", seeds.selections, read_selection, _SEALED, share=0.9),
    Kind("recipes", seeds.recipes, read_recipe, {"*": formats.yaml_file}, share=0.7),
    Kind("compositions", seeds.compositions, read_composed, {"*.yaml": formats.yaml_file}, share=0.7),
    Kind(
        "images",
        seeds.images,
        read_images,
        {"*.png": formats.png_file, "*.jpg": formats.jpeg_file},
        hostile.image_bombs,
        (b"%!PS-Adobe", b"IHDR", b"Exif\0\0"),
    ),
    Kind(
        "images with labels.csv",
        seeds.labelled_images,
        read_labelled_images,
        {"*.csv": formats.comma_table, "*.txt": formats.comma_table},
        hostile.labels_hostile,
        (b"../", b"/", b",", b'"', b"\0"),
    ),
    Kind("tables", seeds.tables, read_table, {"*.csv": formats.comma_table}, tokens=(b",", b'"', b"nan", b"1e999")),
    Kind(
        ".npz datasets",
        seeds.npz,
        read_npz,
        {"*": formats.zip_file(lambda name: formats.npy_file)},
        hostile.npz_hostile,
        (b"|O", b"'shape': (", b"<U"),
    ),
    Kind(
        "IDX files",
        seeds.idx,
        read_named("mnist"),
        {"*.gz": formats.gzip_file(formats.big_endian), "*": formats.big_endian},
        hostile.idx_bombs,
    ),
    Kind("CIFAR files", seeds.cifar, read_named("cifar10"), {}, hostile.cifar_hostile, _PICKLE),
    Kind(
        "published corruptions",
        seeds.published,
        read_published,
        {"*": formats.npy_file},
        hostile.published_hostile,
        (b"|O",),
    ),
    Kind(
        "archives",
        seeds.archives,
        read_archive,
        {
            "*.tar.gz": formats.gzip_file(formats.tar_file),
            "*.tar": formats.tar_file,
            "*.zip": formats.zip_file(lambda _: None),
        },
        hostile.archives_hostile,
        (b"../", b"ustar"),
    ),
    Kind(
        "ball memories",
        seeds.memories,
        read_memory,
        {"*.safetensors": formats.safetensors_file, "*": formats.json_lines},
    ),
    Kind(
        "soft labels",
        seeds.soft_label_folders,
        lambda folder: seeds.labels_of(folder),
        _SEALED,
    ),
    Kind("trainings to resume", seeds.trainings, read_training, {"*": formats.safetensors_file}),
)

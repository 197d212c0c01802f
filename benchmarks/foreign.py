"""Models that others trained, certified as they are, behind denoisers that others trained, and fine-tuned behind one.

Rebuilds ``docs/foreign-models.md`` from the runs in ``benchmarks/foreign``. A missing run is made first, from the
published files in the folder ASSETS, whose names and SHA-256 are in FILES: CERTIFY with n = 1 000 on test images 0,
100, 200, …; it can be stopped and continued. Making them needs CIFAR-10 and MNIST and takes an hour on two cores.

Usage: python benchmarks/foreign.py [--assets ASSETS] [--work DIR] [ROW ...]
"""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

import torch

from shared import DOCS, table
from smoothcert import Cohen, Gaussian, Smoothed, TrainingSettings, certify_dataset, data, load_run
from smoothcert.classifiers.denoised import Denoised
from smoothcert.models import LoadedModel, load_denoiser, open_model
from smoothcert.models.checkpoints import read_file
from smoothcert.models.zoo import ZooFile
from smoothcert.report.intervals import acr_interval
from smoothcert.report.metrics import average_certified_radius, certified_accuracy
from smoothcert.report.recompute import outcomes_of
from smoothcert.training import finetune

RUNS = Path(__file__).parent / "foreign"
PROVABLE = Path(__file__).parent / "provable.py"
SIGMAS = (0.12, 0.25)
RADII = (0.0, 0.1, 0.25, 0.5)
N, EVERY = 1_000, 100
CLEAN_EVERY = 10

FILES = {
    "resnet20": ("akamaster-cifar10/resnet20-12fca82f.th", "12fca82f"),
    "resnet56": ("akamaster-cifar10/resnet56-4bfd9763.th", "4bfd9763"),
    "l2 network": ("convex-adversarial/l2_cifar_small_36px.pth", "d99894f1"),
    "l∞ network": ("convex-adversarial/mnist.pth", "95014ab0"),
    "dncnn": ("kair-denoisers/dncnn_color_blind.pth", "dfe11a6b"),
    "ffdnet": ("kair-denoisers/ffdnet_color.pth", "286f04f7"),
    "mnist.onnx": ("onnxruntime/mnist.onnx", "2f06e72d"),
    "cnn_mnist.onnx": ("onnxruntime/cnn_mnist_pytorch.onnx", "f2e586da"),
}
"""Each file, and the beginning of its SHA-256."""

OPTIONS = {
    "l2 network": f"{PROVABLE}:provable,channels=3,features=2048,entry=0,normalize=0.485:0.456:0.406/0.225,weights=",
    "l∞ network": f"{PROVABLE}:provable,channels=1,features=1568,weights=",
    "mnist.onnx": "normalize=bytes",
}
"""What a file does not say about itself: the network in front of it, or options after it."""

FINETUNING = TrainingSettings(
    epochs=2, batch_size=128, rate=0.01, augment="cifar", precision="bf16-mixed", holdout=100, weight_decay=5e-4
)


@dataclass(frozen=True)
class Row:
    """A classifier at one noise level."""

    model: str
    sigma: float
    denoiser: str | None = None
    tuned: bool = False

    @property
    def name(self) -> str:
        behind = f" behind {self.denoiser}" if self.denoiser else ""
        return f"{self.model}{behind}{', fine-tuned' if self.tuned else ''}"

    @property
    def dataset(self) -> str:
        return "mnist" if self.model in ("l∞ network", "mnist.onnx", "cnn_mnist.onnx") else "cifar10"

    @property
    def folder(self) -> Path:
        words = [self.model.replace("∞", "inf").replace(" ", "-"), self.denoiser, "tuned" if self.tuned else None]
        return RUNS / "-".join([*filter(None, words), f"{self.sigma:.2f}"])


ROWS = [
    Row(model, sigma, denoiser, tuned)
    for sigma in SIGMAS
    for model, denoiser, tuned in (
        ("resnet20", None, False),
        ("resnet20", "ffdnet", False),
        ("resnet20", "ffdnet", True),
        ("resnet56", None, False),
        ("resnet56", "ffdnet", False),
        ("l2 network", None, False),
        ("l∞ network", None, False),
        ("mnist.onnx", None, False),
        ("cnn_mnist.onnx", None, False),
        ("resnet20", "dncnn", False),  # slow
    )
]


def file_of(name: str, assets: Path) -> Path:
    """The file of a model, refused if it is not the published one."""
    file, digest = FILES[name]
    if not ZooFile.of(read_file(assets / file)).sha256.startswith(digest):
        raise SystemExit(f"{assets / file} is not the published file.")
    return assets / file


def opened(name: str, assets: Path) -> LoadedModel:
    file, options = file_of(name, assets), OPTIONS.get(name, "")
    return open_model(f"{options}{file}" if options.endswith("=") else ",".join(filter(None, [str(file), options])))


def classifier(row: Row, assets: Path, work: Path) -> torch.nn.Module:
    model = opened(row.model, assets).model
    if row.denoiser is None:
        return model
    denoiser = load_denoiser(file_of(row.denoiser, assets), level=row.sigma)
    if row.tuned:
        training = data.load(row.dataset, split="train")
        finetune(model, denoiser, training, Gaussian(row.sigma), settings=FINETUNING, folder=work / row.folder.name)
    return Denoised(model, denoiser)


def make(row: Row, assets: Path, work: Path) -> None:
    certify_dataset(
        Smoothed(classifier(row, assets, work), Gaussian(row.sigma, grid=255)),
        data.load(row.dataset, split="test"),
        Cohen(n=N, alpha=0.001),
        run=row.folder,
        every=EVERY,
        source={"files": [FILES[name][0] for name in (row.model, row.denoiser) if name]},
    )
    (row.folder / "pending.jsonl").unlink(missing_ok=True)


def clean_accuracy(assets: Path) -> dict[str, float]:
    """The accuracy of each classifier without noise, on every tenth test image."""
    found = {}
    for row in ROWS:
        if row.model not in found and row.denoiser is None:
            x, y = data.load(row.dataset, split="test").arrays()
            model = opened(row.model, assets).model
            with torch.no_grad():
                answers = torch.cat([model(part).argmax(1) for part in x[::CLEAN_EVERY].split(100)])
            found[row.model] = float((answers == y[::CLEAN_EVERY]).double().mean())
    return found


def complete(row: Row) -> bool:
    return (row.folder / "run.json").exists() and len(load_run(row.folder)) == 10_000 // EVERY


def figures(row: Row) -> dict[str, object]:
    outcomes = outcomes_of(load_run(row.folder))
    return {
        "acr": average_certified_radius(outcomes),
        "interval": acr_interval(outcomes),
        "certified": [float(value) for value in certified_accuracy(outcomes, RADII)],
    }


def gains(results: dict[tuple[str, float], dict[str, object]]) -> str:
    """What a denoiser adds, in one sentence for each classifier and noise level."""
    sentences = []
    for row in ROWS:
        alone = results.get((row.model, row.sigma))
        if row.denoiser and (row.name, row.sigma) in results and alone:
            place, behind = RADII.index(0.1), results[row.name, row.sigma]
            sentences.append(
                f"- {row.name}, σ = {row.sigma:g}: ACR {alone['acr']:.3f} → {behind['acr']:.3f}, certified at 0.1 "
                f"{100 * alone['certified'][place]:.0f} → {100 * behind['certified'][place]:.0f} %."
            )
    return "\n".join(sentences)


def page(results: dict[tuple[str, float], dict[str, object]], clean: dict[str, float]) -> str:
    parts = []
    for dataset, title in (("cifar10", "CIFAR-10"), ("mnist", "MNIST")):
        for sigma in SIGMAS:
            rows = {
                row.name: results[row.name, sigma]
                for row in ROWS
                if row.dataset == dataset and row.sigma == sigma and (row.name, sigma) in results
            }
            if rows:
                parts.append(f"## {title}, σ = {sigma:g}\n\n{table(rows, RADII)}")
    accuracies = ", ".join(f"{name} {100 * value:.1f}" for name, value in clean.items())
    missing = [f"{row.name} at σ = {row.sigma:g}" for row in ROWS if (row.name, row.sigma) not in results]
    introduction = (
        "Published classifiers that never saw noise (ResNets of Akamaster), two with a provable bound in training "
        "(Wong and Kolter, 2018) and two ONNX files of the tests of ONNX Runtime, certified as they are; behind "
        "published Gaussian denoisers (FFDNet with its noise level set to σ, blind DnCNN; KAIR); and fine-tuned behind "
        f"one ({FINETUNING.epochs} epochs). With n = {N}, α = 0.001, exact noise, on test images 0, {EVERY}, "
        f"{2 * EVERY}, … ({10_000 // EVERY} images). Certified accuracy is in percent; with so few images, its 95 % "
        "intervals reach about 10 percentage points to both sides. Without noise, the accuracy on "
        f"{10_000 // CLEAN_EVERY} test images is (in percent) {accuracies}. `python benchmarks/foreign.py` rebuilds "
        "this page."
    )
    sections = [
        "# Models that others trained",
        textwrap.fill(introduction, 120, break_on_hyphens=False),
        *(part.rstrip() for part in parts),
        "## What a denoiser adds",
        gains(results),
        *([f"Not certified yet: {', '.join(missing)}."] if missing else []),
    ]
    return "\n\n".join(sections) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", help="rows to make, as 'NAME@SIGMA'; all by default")
    parser.add_argument("--assets", type=Path, help="folder of the published files; without it, nothing is made")
    parser.add_argument("--work", type=Path, default=Path("models"), help="where fine-tuning goes on")
    parser.add_argument("--threads", type=int, help="CPU threads")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    kept = RUNS / "clean.json"
    if chosen.assets:
        RUNS.mkdir(exist_ok=True)
        if not kept.exists():
            kept.write_text(json.dumps(clean_accuracy(chosen.assets), indent=2, ensure_ascii=False) + "\n")
        for row in ROWS:
            if not complete(row) and (not chosen.rows or f"{row.name}@{row.sigma:g}" in chosen.rows):
                make(row, chosen.assets, chosen.work)
    results = {(row.name, row.sigma): figures(row) for row in ROWS if complete(row)}
    text = page(results, json.loads(kept.read_text()))
    (DOCS / "foreign-models.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

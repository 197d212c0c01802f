"""The seven training methods on MNIST at σ = 0.50, next to the papers' models on the same 200 test images.

Rebuilds ``docs/mnist.md`` from the models and runs kept in ``benchmarks/mnist``. What is missing there is made first: a
model by its quick recipe, a run by CERTIFY with n = 100 000 on test images 0, 50, 100, …; both can be stopped and
continued. Making them needs MNIST (``benchmarks/prepare_data.py``) and takes hours on two cores. ``--time`` measures
how long each recipe takes, on a machine that does nothing else.

Usage: python benchmarks/mnist.py [--kept-only] [--time] [METHOD ...]
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch

from smoothcert import Cohen, Gaussian, Smoothed, certify_dataset, data, load_run
from smoothcert.models import describe, load_checkpoint
from smoothcert.report.metrics import acr_text, average_certified_radius, certified_accuracy
from smoothcert.report.recompute import outcomes_of
from smoothcert.store import Result
from smoothcert.training import train
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import train_recipe

HERE = Path(__file__).parent / "mnist"
PAGE = Path(__file__).parents[1] / "docs" / "mnist.md"
SIGMA, EVERY, INPUTS = 0.5, 50, 200
RADII = (0.0, 0.5, 1.0, 1.5)
PUBLISHED = {
    "gaussian": (1.519, "1.511–1.524"),
    "stability": (1.536, "1.525–1.544"),
    "macer": (1.563, "1.549–1.573"),
    "consistency": (1.625, "1.621–1.631"),
    "smoothadv": (1.660, ""),
    "smoothmix": (1.670, ""),
    "catrs": (1.679, ""),
}
"""ACR of the papers' models on these images, from their published logs, and its range over five seeds."""

MINUTES = HERE / "minutes.json"
TIMED_INPUTS, TIMED_TURNS = 2560, 3


def model_file(method: str) -> Path:
    return HERE / "models" / f"{method}.safetensors"


def run_folder(method: str) -> Path:
    return HERE / "runs" / method


def make_model(method: str, work: Path) -> None:
    recipe = load_recipe(f"mnist-{method}-{SIGMA:.2f}-quick")
    train_recipe(recipe, work / recipe.name)
    model_file(method).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(work / recipe.name / "last.safetensors", model_file(method))


def make_run(method: str) -> None:
    checkpoint = load_checkpoint(model_file(method))
    certify_dataset(
        Smoothed(checkpoint.model, Gaussian(SIGMA)),
        data.load("mnist", split="test"),
        Cohen(n=100_000, alpha=0.001),
        run=run_folder(method),
        every=EVERY,
        source={"checkpoint": checkpoint.path.name, "sha256": checkpoint.sha256},
    )


def measure_minutes(method: str) -> float:
    """Minutes that a recipe's epochs take: the best of some turns over a part of the data, from the trained weights.

    Those of the recipe that it starts from are included.
    """
    recipe = load_recipe(f"mnist-{method}-{SIGMA:.2f}-quick")
    before = measure_minutes(load_recipe(recipe.start).method["name"]) if recipe.start else 0.0
    x, y = data.load("mnist", split="train").arrays()
    part = x[:TIMED_INPUTS], y[:TIMED_INPUTS]
    soft = torch.eye(10)[part[1]] if recipe.soft_labels else None
    settings = recipe.model_copy(
        update={"epochs": 1, "holdout": 0, "rate": 1e-6, "schedule": "step", "milestones": (), "start": None}
    )
    seconds = []
    for _ in range(TIMED_TURNS):
        model = load_checkpoint(model_file(method)).model
        history = train(
            model,
            part,
            noise=recipe.build_noise(),
            method=recipe.build_method(),
            settings=settings,
            soft_labels=soft,
            progress=False,
        )
        seconds.append(history[0]["seconds"])
    return before + min(seconds) / 60 * recipe.epochs * (len(x) - recipe.holdout) / TIMED_INPUTS


def complete(method: str) -> bool:
    folder = run_folder(method)
    return (folder / "run.json").exists() and load_run(folder).table().num_rows == INPUTS


def figures(method: str) -> dict[str, object]:
    outcomes = outcomes_of(Result(method, load_run(run_folder(method))))
    acr = average_certified_radius(outcomes)
    extra = describe(model_file(method)).info.extra
    published, seeds = PUBLISHED[method]
    start = load_recipe(f"mnist-{method}-{SIGMA:.2f}-quick").start
    return {
        "epochs": f"{load_recipe(start).epochs} + {extra['epoch']}" if start else extra["epoch"],
        "minutes": json.loads(MINUTES.read_text())[method] if MINUTES.exists() else None,
        "acr": acr,
        "published": published,
        "seeds": seeds,
        "difference": acr / published - 1,
        "certified": [float(value) for value in certified_accuracy(outcomes, RADII)],
    }


INTRODUCTION = """\
# MNIST at σ = 0.50

LeNet trained by the quick recipes (`smoothcert train mnist-METHOD-0.50-quick`, on two CPU cores) and certified with
n = 100 000, α = 0.001 on test images 0, 50, 100, …, next to the papers' models on the same 200 images. Certified
accuracy is in percent. Minutes are those of training, measured on 2 560 images with nothing else running and scaled to
the recipe's epochs; the soft labels of CAT-RS, and the model that makes them, come on top.
`python benchmarks/mnist.py` rebuilds this page.
"""
HEADINGS = (
    "method",
    "epochs",
    "minutes",
    "ACR",
    "published",
    "five seeds",
    "difference",
    *(f"r = {r:g}" for r in RADII),
)


def page(results: dict[str, dict[str, object]]) -> str:
    lines = [INTRODUCTION, f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    for method, r in results.items():
        minutes = "" if r["minutes"] is None else f"{r['minutes']:.1f}"
        shares = " | ".join(f"{100 * share:.1f}" for share in r["certified"])
        lines.append(
            f"| {method} | {r['epochs']} | {minutes} | {acr_text(r['acr'])} | {r['published']:.3f} | {r['seeds']} | "
            f"{100 * r['difference']:+.1f} % | {shares} |"
        )
    missing = [method for method in PUBLISHED if method not in results]
    if missing:
        lines += ["", f"Not yet certified: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("methods", nargs="*", default=list(PUBLISHED), help="methods to make; all by default")
    parser.add_argument("--kept-only", action="store_true", help="make nothing, only rebuild the page")
    parser.add_argument("--time", action="store_true", help="measure the minutes of all recipes whose models are there")
    parser.add_argument("--work", type=Path, default=Path("models"), help="where trainings go on")
    parser.add_argument("--threads", type=int, help="CPU threads")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    for method in () if chosen.kept_only else chosen.methods:
        if not model_file(method).exists():
            make_model(method, chosen.work)
        if not complete(method):
            make_run(method)
    if chosen.time:
        minutes = {method: measure_minutes(method) for method in PUBLISHED if model_file(method).exists()}
        MINUTES.write_text(json.dumps(minutes, indent=2) + "\n", encoding="utf-8")
    results = {method: figures(method) for method in PUBLISHED if complete(method)}
    PAGE.write_text(page(results), encoding="utf-8")
    print(json.dumps({"benchmark": "mnist", "results": results}))
    print(page(results))


if __name__ == "__main__":
    main()

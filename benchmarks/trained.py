"""What the benchmarks that fill the zoo share: train a model by its recipe, certify it, time the recipe."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from smoothcert import Cohen, Smoothed, certify_dataset, data, load_run
from smoothcert.models import describe, load_checkpoint
from smoothcert.models.zoo import MODEL
from smoothcert.noise import Noise
from smoothcert.report.recompute import outcomes_of
from smoothcert.store import Outcomes, Result
from smoothcert.training import train
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import train_recipe
from smoothcert.training.settings import Recipe
from zoo import MINUTES, ZOO, minutes, write_zoo

EVERY, INPUTS = 50, 200
TIMED_INPUTS, TIMED_TURNS = 2560, 3


@dataclass(frozen=True)
class Trained:
    """A model of the zoo, made by a recipe of the package."""

    name: str  # in the zoo
    recipe_name: str
    seed: int = 0

    @property
    def recipe(self) -> Recipe:
        return load_recipe(self.recipe_name, {"seed": self.seed} if self.seed else {})

    @property
    def folder(self) -> Path:
        """The folder of the model, its card and its run."""
        return ZOO / self.name

    def make_model(self, work: Path) -> None:
        folder = work / f"{self.recipe_name}{f'-seed{self.seed}' if self.seed else ''}"
        train_recipe(self.recipe, folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "last.safetensors", self.folder / MODEL)

    def make_run(self, noise: Noise, n: int, work: Path) -> None:
        checkpoint, run = load_checkpoint(self.folder / MODEL), work / f"{self.name}-run"
        certify_dataset(
            Smoothed(checkpoint.model, noise),
            data.load(self.recipe.dataset, split="test"),
            Cohen(n=n, alpha=0.001),
            run=run,
            every=EVERY,
            source={"checkpoint": checkpoint.path.name, "sha256": checkpoint.sha256},
        )
        shutil.copytree(run, self.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))

    def complete(self) -> bool:
        return (self.folder / "run.json").exists() and load_run(self.folder).table().num_rows == INPUTS

    def outcomes(self, n: int | None = None) -> Outcomes:
        return outcomes_of(Result(self.name, load_run(self.folder)), n=n)

    def epochs(self) -> str:
        """The epochs of the model, after those of the model that it started from."""
        trained = str(describe(self.folder / MODEL).info.extra["epoch"])
        start = self.recipe.start
        return f"{load_recipe(start).epochs} + {trained}" if start else trained

    def minutes(self) -> float:
        """Minutes that the epochs take: the best of some turns over a part of the data, from the trained weights.

        Those of the recipe that it starts from are included.
        """
        return _minutes(self.recipe, self.folder)


def _minutes(recipe: Recipe, folder: Path) -> float:
    before = _minutes(load_recipe(recipe.start), folder) if recipe.start else 0.0
    x, y = data.load(recipe.dataset, split="train").arrays()
    part = x[:TIMED_INPUTS], y[:TIMED_INPUTS]
    soft = torch.eye(10)[part[1]] if recipe.soft_labels else None
    settings = recipe.model_copy(
        update={"epochs": 1, "holdout": 0, "rate": 1e-6, "schedule": "step", "milestones": (), "start": None}
    )
    seconds = []
    for _ in range(TIMED_TURNS):
        history = train(
            load_checkpoint(folder / MODEL).model,
            part,
            noise=recipe.build_noise(),
            method=recipe.build_method(),
            settings=settings,
            soft_labels=soft,
            progress=False,
        )
        seconds.append(history[0]["seconds"])
    return before + min(seconds) / 60 * recipe.epochs * (len(x) - recipe.holdout) / TIMED_INPUTS


def parser(description: str | None, names: Sequence[str]) -> argparse.ArgumentParser:
    """The options of a benchmark that fills the zoo."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("names", nargs="*", default=list(names), help="models to make; all by default")
    made.add_argument("--kept-only", action="store_true", help="make nothing, only rebuild the page")
    made.add_argument("--time", action="store_true", help="measure the minutes of the models that are there")
    made.add_argument("--work", type=Path, default=Path("models"), help="where trainings go on")
    made.add_argument("--threads", type=int, help="CPU threads")
    return made


def make(every: dict[str, Trained], chosen: argparse.Namespace, n: int, grid: int | None) -> None:
    """Train, certify and time what was chosen and is missing, and write the cards and the index of the zoo."""
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    for name in () if chosen.kept_only else chosen.names:
        each = every[name]
        if not (each.folder / MODEL).exists():
            each.make_model(chosen.work)
        if not each.complete():
            noise = each.recipe.build_noise()
            each.make_run(type(noise)(**{**vars(noise), "grid": grid}), n, chosen.work)
    if chosen.time:
        models = [every[name] for name in chosen.names if (every[name].folder / MODEL).exists()]
        known = minutes() | {each.name: round(each.minutes(), 2) for each in models}
        MINUTES.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    write_zoo()

"""How a run came about, as far as it matters where runs stand side by side: its noise, its seeds, its samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smoothcert.store import Run

SCALES = {"gaussian": ("sigma", "σ"), "uniform": ("lam", "λ"), "discrete": ("keep", "keep")}
"""The setting that is the scale of a noise, and how it is written in headings, by the noise's name."""


@dataclass(frozen=True)
class Origin:
    """What is known about how a run came about.

    Attributes:
        noise: The name of the noise, if one noise was used for all inputs.
        scale: Its scale: σ, λ or the share of pixels kept.
        data: The dataset and its split.
        n: The number of estimation samples, if it was fixed.
        alpha: The probability of a wrong statement.
        seeds: The seed of the noise, then those of the trainings, if known.
        alike: What a run shares with those that differ from it in seeds only.
        recipe: The recipe that its model was trained by, if known.
    """

    noise: str | None = None
    scale: float | None = None
    data: str | None = None
    n: int | None = None
    alpha: float | None = None
    seeds: tuple[int, ...] = ()
    alike: str | None = None
    recipe: str | None = None


def origin_of(run: Run, *, n: int | None = None, alpha: float | None = None) -> Origin | None:
    """The origin of a run folder.

    Args:
        run: The run.
        n: The number of samples its outcomes were recomputed for, if they were.
        alpha: The probability of a wrong statement they were recomputed for, if they were.

    Returns:
        The origin; None for a log, which does not tell it.

    Raises:
        RunError: If a setting is of another kind than a run is written with.
    """
    if run.config["kind"] != "certification":
        return None
    config = dict(run.settings)
    changes = {key: value for key, value in (("n", n), ("alpha", alpha)) if value is not None}
    procedure = config["procedure"] = {**config.get("procedure", {}), **changes}
    training = _training(run)
    seeds = [config.pop("seed", 0)]
    if training:
        # The same training from other random numbers has other weights; its settings take their place.
        config["model"] = [entry["settings"] for entry in training]
        seeds += [entry["seed"] for entry in training]
    # A scale of one's own for every input, and several experts, are no scale to group runs by.
    noise = {} if {"sigma", "experts"} & config.keys() else config.get("noise", {})
    data = config.get("data", {})
    recipes = {entry["recipe"] for entry in training}
    return Origin(
        noise=noise.get("name"),
        scale=noise.get(SCALES[noise["name"]][0]) if noise.get("name") in SCALES else None,
        data=" ".join(filter(None, (data.get("name"), data.get("split")))) or None,
        n=procedure.get("n"),
        alpha=procedure.get("alpha"),
        seeds=tuple(seeds),
        alike=json.dumps(config, sort_keys=True),
        recipe=recipes.pop() if len(recipes) == 1 else None,
    )


def _training(run: Run) -> list[Mapping[str, Any]]:
    """How the models of the last session were trained; nothing where that is not told as we tell it."""
    sessions = run.info.get("sessions")
    for session in reversed(sessions if isinstance(sessions, list) else []):
        source = session.get("source") if isinstance(session, Mapping) else None
        training = source.get("training") if isinstance(source, Mapping) else None
        if isinstance(training, list) and training:
            return training if all(map(_tells_training, training)) else []
    return []


def _tells_training(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or not {"settings", "seed", "recipe"} <= entry.keys():
        return False
    return isinstance(entry["seed"], int) and (entry["recipe"] is None or isinstance(entry["recipe"], str))

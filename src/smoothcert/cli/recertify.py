"""``smoothcert recertify``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from smoothcert.certify.recertify import Recertify
from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, Seed, load_smoothed
from smoothcert.cli.show import show_accuracy
from smoothcert.compositions import open_classifier
from smoothcert.evaluate import recertify as recertify_run
from smoothcert.noise.grid import GridNoise
from smoothcert.report.recompute import outcomes_of
from smoothcert.store import load_run
from smoothcert.types import UsageError


def recertify(
    stored: Annotated[Path, typer.Argument(metavar="RUN", help="The run of the original, certified by cohen.")],
    about: DataOptions,
    classifier: ClassifierOptions,
    original: Annotated[str | None, "The original model; by default the checkpoint that RUN names."] = None,
    n: Annotated[int | None, "Fresh samples per input; by default a tenth of those of RUN."] = None,
    alpha: Annotated[float | None, "Probability that a certificate is wrong; by default that of RUN."] = None,
    direct: Annotated[
        float, "Do not call the original where it gave its class at least this share of the votes."
    ] = Recertify.direct,
    seed: Seed = None,
    run: Annotated[Path | None, "Run folder; by default in runs/, named after RUN and MODEL."] = None,
) -> None:
    """Certify a quantised, fine-tuned or exported MODEL from the run of the original, with fewer samples.

    Votes of both models on the same noisy copies bound how often MODEL changes the original's answer. The stored votes
    minus that bound prove MODEL's radius; its own votes are used where they prove more. α is split before sampling. The
    result is an ordinary run; stop it at any time, the same command continues.

    **Examples**

        smoothcert recertify runs/lenet-mnist lenet.int8.onnx --data mnist
        smoothcert recertify runs/lenet-mnist tuned.safetensors --data mnist --original lenet.safetensors --n 1000
    """
    known = load_run(stored)
    noise = known.settings.build_noise()
    exact = noise.exact if isinstance(noise, GridNoise) else None
    dataset = about.load()
    loaded = load_smoothed(classifier, [dataset], noise, exact)
    place = original or _checkpoint(known.sessions)
    if place is None:
        raise UsageError(f"{stored} does not name its model; give it as --original.")
    first = open_classifier(place, noise=noise, device=loaded.smoothed.device, x=dataset[0][0], trust=classifier.trust)
    folder = run or Path("runs") / f"{known.path.resolve().name}-recertified-{classifier.name}"
    finished = recertify_run(
        known,
        first.base.model,
        loaded.smoothed,
        dataset,
        run=folder,
        n=n,
        alpha=alpha,
        direct=direct,
        seed=seed,
        source={**loaded.source, "original": {"run": str(stored), **first.source}},
    )
    show_accuracy([outcomes_of(known), outcomes_of(finished)])
    rows = finished.table(["n", "changed"])
    both = len(rows) - rows["changed"].null_count
    typer.echo(f"{rows['n'][0].as_py():,} samples per input; the original was called for {both} of {len(rows)} inputs.")
    typer.echo(f"Run: {folder}", err=True)


def _checkpoint(sessions: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the file of the model in the last session that names one."""
    for session in reversed(sessions):
        source = session.get("source")
        place = source.get("file", source.get("checkpoint")) if isinstance(source, Mapping) else None
        if isinstance(place, str):
            return place
    return None

"""Certify a model from the run of a similar one, such as the one it was quantised or fine-tuned from."""

from __future__ import annotations

import json

from smoothcert.certify import Smoothed
from smoothcert.certify.recertify import Recertify, StoredVotes
from smoothcert.classifiers import Pair
from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.identity import model_identity
from smoothcert.data.inputs import Indexable
from smoothcert.evaluate.certification import certify_dataset
from smoothcert.store import Result, Run, load_run
from smoothcert.store.selection import select, take_shard, whole_selection
from smoothcert.types import RunError, StrPath, UsageError


def recertify(
    original: StrPath | Run,
    model: Forward,
    smoothed: Smoothed,
    dataset: Indexable,
    *,
    run: StrPath,
    n: int | None = None,
    alpha: float | None = None,
    direct: float = Recertify.direct,
    seed: int | None = None,
    progress: bool = True,
    source: dict[str, object] | None = None,
) -> Run:
    """Certify a slightly changed model on the inputs of a run of the original, with a fraction of the samples.

    See :class:`~smoothcert.certify.recertify.Recertify` for what is bounded, and for the proof. The same call on an
    unfinished folder continues it.

    Args:
        original: The run of the original model, certified by ``Cohen``.
        model: The original model, which is called again on noisy copies.
        smoothed: The changed model with the noise of the run.
        dataset: The data of the run.
        run: The folder of the new run.
        n: Fresh noisy copies of each input; by default a tenth of those of the original run.
        alpha: The probability that a certificate is wrong; by default that of the original run.
        direct: Share of the original's votes from which its class is bounded by the new model's votes alone.
        seed: The seed of the noise, as in :func:`certify_dataset`.
        progress: Whether to show a progress bar.
        source: Where the models came from, recorded in ``run.json``.

    Raises:
        UsageError: If the original run has another procedure, noise, model or data, or is unfinished.
        RunError: As :func:`certify_dataset`.
    """
    known = original if isinstance(original, Run) else load_run(original)
    settings, procedure = known.settings, known.settings.procedure
    if not (settings.certified and settings.fixed_samples and settings.one_noise):
        raise UsageError(
            f"{known.path} was not certified with a fixed number of samples and one noise; certify the original model "
            "by cohen first."
        )
    if smoothed.experts or smoothed.sigma is not None:
        raise UsageError("only a model with one noise can be recertified; leave out experts and a chosen sigma.")
    if known.config.get("precision") or smoothed.precision:  # the pair of models runs without autocast
        raise UsageError("a model that runs in autocast cannot be recertified; leave out the precision in both runs.")
    noise = settings.build_noise()
    if noise != smoothed.noise:
        raise UsageError(f"{known.path} was certified under {noise}, not under {smoothed.noise}; use the same noise.")
    if json.loads(json.dumps(model_identity(model))) != known.config.get("model"):
        raise UsageError(
            f"the original model is not the one that {known.path} certified: weights or code differ; give that one."
        )
    place = {"every": 1, "start": 0, "stop": None, **whole_selection(known.config)}
    shard = settings.inputs.shard
    result = Result(known.name, known)
    indices = select(len(dataset), **place)
    wanted = indices if shard is None else take_shard(indices, *shard)
    missing = set(wanted) - set(result.array("index").tolist())
    if missing:
        raise UsageError(
            f"{known.path} has no certificate for {len(missing)} inputs, such as {min(missing)}; finish it first."
        )
    if procedure.n0 is None or procedure.alpha is None or {procedure.n} != set(result.array("n").tolist()):
        raise RunError(f"{known.path} is damaged: its run.json and its rows record other samples; certify it again.")
    stored = StoredVotes(
        inputs=result.column("input").to_pylist(),
        selection=result.votes("selection"),
        n0=procedure.n0,
        counts=result.votes("counts"),
        n=result.array("n").tolist()[0],
    )
    how = Recertify(
        pair=Pair(model, smoothed.model),
        stored=stored,
        n=max(stored.n // 10, 1) if n is None else n,
        alpha=procedure.alpha if alpha is None else alpha,
        direct=direct,
        norm=procedure.norm,
    )
    return certify_dataset(
        smoothed,
        dataset,
        how,
        run=run,
        **place,
        shard=None if shard is None else (shard[0], shard[1]),
        seed=seed,
        progress=progress,
        source=source,
    )

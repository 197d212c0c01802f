"""ACES: a certified selector sends every input to a smoothed certifier or to an accurate core.

After Horváth, Müller, Fischer and Vechev (2022), Robust and accurate – compositional architectures for randomized
smoothing. All is computed from stored votes or published logs, so no threshold needs new samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothcert.noise import Noise
from smoothcert.noise.base import shortened
from smoothcert.report.metrics import (
    NORM_TEXT,
    average_certified_radius,
    certified_accuracy,
    check_same_inputs,
    common_norm,
)
from smoothcert.report.recompute import dimension_for, offsets, runner_up_inputs
from smoothcert.stats import lower_bound
from smoothcert.stats.decisions import (
    certified_class,
    choice_votes,
    guess_and_bounds,
    guessed_choice,
    predicted_choice,
    predicted_class,
    routed_class,
)
from smoothcert.store import LogKind, Result, load_result
from smoothcert.store.outcomes import UNKNOWN, Metadata, Outcomes, read_metadata, read_norm
from smoothcert.store.result import CERTIFICATION, ENTROPIES, SELECTION, natural_count, no_rows
from smoothcert.types import ABSTAIN, CERTIFIER, CORE, PLAIN, Guarantee, Norm, RunError, StrPath, UsageError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

TABULATED = tuple(i / 10 for i in range(11))
"""The thresholds of the paper's tables."""

_SAME_THETA = 1e-9
_SPELLING = {"clean_predict": "unperturbed predict", "p50": "50 percentile"}
_VOTES = ("selection", "counts", "selector0", "selector")


@dataclass(frozen=True, eq=False, kw_only=True)
class Components:
    """The answers of the parts of ACES over the same inputs; the arrays are checked, copied and read-only."""

    certifier: Outcomes  # the certifier alone, at its share α/2; alpha and metadata are those of the composition
    predicted: IntArray  # the classes of the certifier by PREDICT, or ABSTAIN
    core: IntArray  # the classes of the core on the clean inputs
    thetas: FloatArray  # the thresholds θ, ascending
    choice: IntArray  # the selector's certified choice by threshold and input: CERTIFIER, CORE or ABSTAIN
    choice_radius: FloatArray  # of that choice, 0 for abstentions
    choice_predicted: IntArray  # the selector's choice by PREDICT
    median: FloatArray | None = None  # the median score (entropy) of every input, if known; NaN without valid copies
    settings: Mapping[str, Any] = field(default_factory=dict)  # noise, n and alpha of the votes, if known

    def __post_init__(self) -> None:
        inputs = (len(self.certifier),)
        thetas = self._set("thetas", np.shape(self.thetas), np.float64)
        ascending = thetas.ndim == 1 and thetas.size and (np.diff(thetas) > 0).all()
        if not ascending or not ((thetas >= 0) & (thetas <= 1)).all():
            raise UsageError(f"{self.name}: the thresholds must ascend within [0, 1].")
        for name in ("predicted", "core"):
            if self._set(name, inputs, np.int64).min() < ABSTAIN:
                raise UsageError(f"{self.name}: {name} has a class below -1 (abstain).")
        both = (len(thetas), *inputs)
        for name in ("choice", "choice_predicted"):
            if not np.isin(self._set(name, both, np.int64), (CERTIFIER, CORE, ABSTAIN)).all():
                raise UsageError(f"{self.name}: a selection must be 1 (certifier), 0 (core) or -1 (abstain).")
        radius = self._set("choice_radius", both, np.float64)
        if not (np.isfinite(radius) & (radius >= 0)).all():
            raise UsageError(f"{self.name}: the radii of the selection must be finite and not negative.")
        if radius[self.choice == ABSTAIN].any():
            raise UsageError(f"{self.name}: a selection that abstains must have radius 0.")
        if self.median is not None:
            self._set("median", inputs, np.float64)

    def _set(self, name: str, shape: tuple[int, ...], type_: type[Any]) -> NDArray[Any]:
        array = np.array(getattr(self, name))
        if array.shape != shape:
            raise UsageError(f"{self.name}: {name} has shape {array.shape}, but {shape} is needed.")
        if type_ is np.int64 and not np.issubdtype(array.dtype, np.integer):
            raise UsageError(f"{self.name}: {name} must hold a whole number for every input.")
        array = array.astype(type_)
        array.setflags(write=False)
        object.__setattr__(self, name, array)
        return array

    @property
    def name(self) -> str:
        return self.certifier.name

    def named(self, name: str) -> Components:
        """Return the same under another name."""
        return replace(self, certifier=replace(self.certifier, name=name))

    def position(self, theta: float) -> int:
        """Find the position of a threshold among ``thetas``."""
        if not 0 <= theta <= 1:
            raise UsageError(f"theta {theta:g} lies outside [0, 1].")
        nearest = int(np.argmin(np.abs(self.thetas - theta)))
        if abs(self.thetas[nearest] - theta) > _SAME_THETA:
            raise UsageError(f"{self.name} has no threshold {theta:g}; the nearest stored is {self.thetas[nearest]:g}.")
        return nearest

    def restrict(self, index: IntArray) -> Components:
        """Select inputs, ascending."""
        places = np.searchsorted(self.certifier.index, index)
        names = ("predicted", "core", "choice", "choice_radius", "choice_predicted", "median")
        arrays = {name: array[..., places] for name in names if (array := getattr(self, name)) is not None}
        return replace(self, certifier=self.certifier.at(places), **arrays)


@dataclass(frozen=True, eq=False)
class Single:
    """A smoothed classifier without a core: its certified answers at the whole α, and its natural accuracy."""

    outcomes: Outcomes
    natural: float


def components_from_votes(
    certifier: tuple[str, ArrayLike, ArrayLike],
    *,
    core: ArrayLike,
    selection: ArrayLike,
    counts: ArrayLike,
    selector0: ArrayLike,
    selector: ArrayLike,
    n: int,
    alpha: float,
    radius: Callable[..., FloatArray],
    runner_up: ArrayLike = False,
    offset: ArrayLike = 0.0,
    norm: Norm | None = None,
    settings: Mapping[str, Any] | None = None,
    metadata: Metadata = UNKNOWN,
) -> Components:
    """Compute CERTIFY and PREDICT of the parts of ACES from their votes, at every threshold (Algorithms 1 and 4).

    Each bound uses α/2. A class or a choice is guessed from the selection samples and proved by the estimation samples;
    PREDICT tests the estimation samples, two-sided, and chooses the core only where it has more votes *and* passes.

    Args:
        certifier: Its name, and index and label of every input.
        selection, counts: Votes per class among the selection and the n estimation samples, (inputs, classes).
        selector0, selector: Histograms of scores over the same samples, (inputs, thresholds); entry j counts the scores
            in (θ_{j-1}, θ_j] with θ_j = j/(thresholds - 1).
        n: Estimation samples, invalid ones included.
        alpha: The probability of a wrong statement, for both parts together.
        radius: The radius that bounds on probabilities prove, as ``noise.radius``.
        runner_up: Whether the certifier uses the runner-up bound, or for which inputs.
        offset: The distance of each input from its grid point, which is subtracted from its radii.
    """
    name, index, label = certifier
    inputs = np.asarray(index), np.asarray(label)
    class_guess, class_votes = _votes(name, len(inputs[0]), n, selection, counts)
    choice_guess, score_votes = _votes(name, len(inputs[0]), n, selector0, selector)
    guess, p_lower, p_upper = guess_and_bounds(class_guess, class_votes, n, alpha / 2, runner_up)
    certified = certified_class(guess, p_lower, p_upper)
    radii = shortened(radius(p_lower, p_upper=p_upper), offset)
    chosen = choice_votes(score_votes).swapaxes(1, 2)  # (core or certifier, thresholds, inputs)
    guess = guessed_choice(choice_votes(choice_guess).swapaxes(1, 2))
    count, place = np.unique(np.where(guess == CERTIFIER, chosen[CERTIFIER], chosen[CORE]), return_inverse=True)
    bound, place = lower_bound(count, n, alpha / 2), place.reshape(guess.shape)
    choice = certified_class(guess, bound[place])
    choice_radius = np.where(choice == ABSTAIN, 0.0, shortened(radius(bound)[place], offset))
    return Components(
        certifier=Outcomes(name, *inputs, certified, radii, norm, alpha=np.array(alpha), metadata=metadata),
        predicted=predicted_class(class_votes, alpha / 2)[0],
        core=np.asarray(core),
        thetas=np.arange(len(choice)) / (len(choice) - 1),
        choice=choice,
        choice_radius=choice_radius,
        choice_predicted=predicted_choice(chosen, alpha / 2)[0],
        median=_median(chosen[CERTIFIER]),
        settings=settings or {},
    )


def _votes(name: str, inputs: int, n: int, selection: ArrayLike, estimation: ArrayLike) -> tuple[IntArray, IntArray]:
    found = np.asarray(selection, dtype=np.int64), np.asarray(estimation, dtype=np.int64)
    if any(votes.ndim != 2 or votes.shape[1] < 2 or (votes < 0).any() for votes in found):
        raise UsageError(f"{name}: votes must be two or more counts for every input, none of them negative.")
    if found[0].shape != found[1].shape or len(found[0]) != inputs:
        raise UsageError(f"{name}: both samples must have the same inputs, classes and thresholds.")
    if found[1].sum(axis=1).max() > n:
        raise UsageError(f"{name}: there are more votes than the {n} estimation samples.")
    return found


def _median(certify: IntArray) -> FloatArray:
    """Compute the median score of every input: the middle of the thresholds around it."""
    above = (2 * certify < certify[-1]).sum(axis=0)
    return np.where(certify[-1] > 0, np.maximum(above - 0.5, 0.0) / (len(certify) - 1), np.nan)


def compose(components: Components, theta: float) -> Outcomes:
    """Compute the certified answers of ACES at a threshold (Algorithm 1).

    The answer is the certifier's class with the smaller of both radii where the selector is certified to choose it;
    else, with radius 0, the core's class where the core is chosen, or the common class of both where no choice is
    certified.

    Example:
        >>> certifier = Outcomes("run", [0, 1, 2], [5, 5, 5], [5, 5, 5], [0.5, 0.2, 0.9])
        >>> parts = Components(
        ...     certifier=certifier, predicted=[5, 5, 5], core=[5, 5, 7], thetas=[0.1], choice=[[1, -1, 0]],
        ...     choice_radius=[[0.3, 0.0, 0.8]], choice_predicted=[[1, 1, 0]],
        ... )
        >>> answers = compose(parts, 0.1)
        >>> answers.predict.tolist(), answers.radius.tolist()
        ([5, 5, 7], [0.3, 0.0, 0.0])
    """
    at = components.position(theta)
    certifier, choice = components.certifier, components.choice[at]
    predict = routed_class(choice, certifier.predict, components.core)
    proved = (choice == CERTIFIER) & ~certifier.abstained
    radius = np.where(proved, np.minimum(certifier.radius, components.choice_radius[at]), 0.0)
    return replace(certifier, predict=predict, radius=radius, natural=None)


def predictions(components: Components, theta: float) -> IntArray:
    """Compute the classes of ACES by PREDICT at a threshold (Algorithm 4), ``ABSTAIN`` where there is none."""
    return routed_class(components.choice_predicted[components.position(theta)], components.predicted, components.core)


def natural_accuracy(components: Components, theta: float) -> float:
    """Compute NAC: the share of inputs that PREDICT classifies correctly."""
    return float((predictions(components, theta) == components.certifier.label).mean())


def selection_counts(components: Components, theta: float, radii: ArrayLike) -> IntArray:
    """Count the inputs whose selector is certified, within every r of ``radii``, to choose the certifier."""
    at = components.position(theta)
    chosen = components.choice_radius[at][components.choice[at] == CERTIFIER]
    return np.asarray((chosen[:, None] >= np.atleast_1d(np.asarray(radii, dtype=np.float64))).sum(axis=0))


def signed_selection_radius(components: Components, theta: float) -> FloatArray:
    """Return the selector's radii: positive for the certifier, negative for the core, 0 for abstentions."""
    at = components.position(theta)
    return np.asarray(np.where(components.choice[at] == CERTIFIER, 1.0, -1.0) * components.choice_radius[at])


def pareto(components: Components, radius: float | None = None) -> tuple[FloatArray, FloatArray]:
    """Compute natural accuracy and robustness at every threshold, as shares in [0, 1] (Figures 1, 4 and 9).

    Robustness is certified accuracy at ``radius``, or the ACR when it is None.
    """
    composed = [compose(components, theta) for theta in components.thetas]
    natural = np.array([natural_accuracy(components, theta) for theta in components.thetas])
    if radius is None:
        return natural, np.array([average_certified_radius(outcomes) for outcomes in composed])
    return natural, np.array([certified_accuracy(outcomes, radius)[0] for outcomes in composed])


def check_comparable(runs: Sequence[Components]) -> None:
    """Refuse components that cannot be in one table."""
    certifiers = [run.certifier for run in runs]
    common_norm(certifiers)
    check_same_inputs(certifiers)
    first = runs[0]
    for run in runs[1:]:
        for key in sorted(run.settings.keys() & first.settings.keys()):
            if run.settings[key] != first.settings[key]:
                raise UsageError(
                    f"{key} is {first.settings[key]} in {first.name} and {run.settings[key]} in {run.name}; "
                    "show them separately."
                )


def load_components(
    source: StrPath | Result, core: StrPath | None = None, *, thetas: Sequence[float] | None = None
) -> Components:
    """Read certifier, selector and core of ACES at all stored thresholds, ordered by input.

    Args:
        source: A run whose rows hold a selector's votes; or the common prefix of the logs (or of the run folders
            imported from them) ``PREFIX_certification``, ``PREFIX_selection_0.00``, … and ``PREFIX_entropies``.
        core: A log, or an imported run, of the core's predictions; not needed where the run has them.
        thetas: Thresholds whose logs must be there; by default those of the paper's tables.
    """
    if isinstance(source, Result):
        prefix = source.prefix
        parts = _from_run(source, core) if prefix is None else _from_prefix(prefix, core, TABULATED)
        return parts.named(source.name)
    path = Path(source)
    if (path / "run.json").exists():
        return _from_run(load_result(path), core)
    return _from_prefix(path, core, TABULATED if thetas is None else thetas)


def load_single(source: StrPath | Result) -> Single:
    """Read the certificates and the natural accuracy of one smoothed classifier.

    The natural accuracy is that of PREDICT on the estimation votes of a run with a fixed number of samples, or of the
    column "unperturbed predict" of a log.
    """
    result = source if isinstance(source, Result) else load_result(source)
    if result.kind != LogKind.CERTIFICATION.value:
        raise UsageError(f"{result.path} holds a {result.kind}; a single classifier needs a certification.")
    outcomes = result.outcomes
    if not result.settings.certified:
        return Single(outcomes, float((_column(result, "clean_predict") == outcomes.label).mean()))
    _refuse_several_noises(result)
    if not result.settings.composed and not result.settings.fixed_samples:
        raise UsageError(
            f"{result.path} was not certified with a fixed n, so its natural accuracy is not known; use cohen."
        )
    counts, alpha = result.votes("counts"), _common(result, "alpha")
    if result.settings.composed:  # the stored answers are those of the composition
        noise, norm = _noise(result)
        selection, n = result.votes("selection"), _common(result, "n")
        runner_up = _runner_up(result, noise, selection, n, alpha)
        guess, p_lower, p_upper = guess_and_bounds(selection, counts, n, alpha, runner_up)
        outcomes = replace(
            outcomes,
            predict=certified_class(guess, p_lower, p_upper),
            radius=noise.radius(p_lower, norm, dimension_for(result, noise, norm), offsets(result.table()), p_upper),
            norm=norm,
            metadata=replace(outcomes.metadata, guarantee=(Guarantee.GLOBAL.value,)),
            natural=None,
        )
    return Single(outcomes, natural_count(counts, outcomes.label, alpha) / len(outcomes))


def _from_run(result: Result, core: StrPath | None) -> Components:
    settings, table = result.settings, result.table()
    if not settings.certified:
        raise UsageError(f"{result.path} is an {settings.kind}; give the common prefix of the imported logs instead.")
    if len(table) == 0:
        raise no_rows(result.path)
    _refuse_several_noises(result)
    if not settings.composed or not result.has(*_VOTES):
        raise UsageError(f"{result.path} kept no votes of a selector; certify with the procedure aces to keep them.")
    n, _, alpha = (_common(result, key) for key in ("n", "n0", "alpha"))
    noise, norm = _noise(result)
    dimension = dimension_for(result, noise, norm)
    index, label = table["index"].to_numpy(), table["label"].to_numpy()
    if core is not None:
        classes = _core(Path(core), result.name, index, label)
    elif result.has("core"):
        classes = table["core"].to_numpy()
    else:
        raise UsageError(f"{result.path} has no answers of a core; give its prediction log with --core.")
    try:
        return components_from_votes(
            (result.name, index, label),
            core=classes,
            **{column: result.votes(column) for column in _VOTES},
            n=n,
            alpha=alpha,
            radius=partial(noise.radius, norm=norm, dimension=dimension),
            runner_up=_runner_up(result, noise, result.votes("selection"), n, alpha / 2),
            offset=offsets(table),
            norm=norm,
            settings={"n": n, "alpha": alpha, "noise": str(noise)},
            metadata=read_metadata(table, seed=settings.seed),
        )
    except UsageError as error:
        raise RunError(f"{result.path} is damaged: {error}") from error


def _from_prefix(prefix: Path, core: StrPath | None, thetas: Sequence[float]) -> Components:
    certification = _behind(prefix, CERTIFICATION)
    selections = _selections(prefix)
    if not certification.exists() and not selections:
        raise UsageError(
            f"neither the run folder {prefix} nor the log {certification} exists; give a run folder, or the common "
            "prefix of the logs _certification, _selection_0.00, …"
        )
    if not certification.exists() or not selections:
        missing = certification if selections else _behind(prefix, f"{SELECTION}0.00")
        raise UsageError(f"{missing} is missing among the other logs of {prefix}; put it there.")
    stored = np.array(sorted(selections))
    for theta in thetas:
        nearest = stored[np.argmin(np.abs(stored - theta))]
        if abs(nearest - theta) > 1e-9:
            raise UsageError(f"the logs of {prefix} have no threshold {theta:g}; the nearest is {nearest:g}.")
    if core is None:
        raise UsageError(f"the logs of {prefix} have no answers of a core; give its prediction log with --core.")
    result = _load(certification, LogKind.CERTIFICATION)
    certifier = replace(result.outcomes, name=prefix.name, natural=None)
    found = [_load(selections[theta], LogKind.SELECTION, certifier) for theta in stored]
    for each in found:
        norm = read_norm(each.table())
        if None not in (norm, certifier.norm) and norm is not certifier.norm:
            raise UsageError(
                f"{certification} has radii in {NORM_TEXT[certifier.norm]} and {each.path} in {NORM_TEXT[norm]}; give "
                "logs in one norm."
            )
    entropies = _behind(prefix, ENTROPIES)
    return Components(
        certifier=certifier,
        predicted=_column(result, "clean_predict"),
        core=_core(Path(core), prefix.name, certifier.index, certifier.label),
        thetas=stored,
        choice=np.stack([each.array("predict") for each in found]),
        choice_radius=np.stack([each.array("radius") for each in found]),
        choice_predicted=np.stack([_column(each, "clean_predict") for each in found]),
        median=_column(_load(entropies, LogKind.ENTROPY, certifier), "p50") if entropies.exists() else None,
    )


def _selections(prefix: Path) -> dict[float, Path]:
    start = f"{prefix.name}{SELECTION}"
    found: dict[float, Path] = {}
    for path in sorted(prefix.parent.iterdir()) if prefix.parent.is_dir() else ():
        if path.name.startswith(start):
            try:
                theta = float(path.name.removeprefix(start))
            except ValueError:
                theta = -1.0
            if not 0 <= theta <= 1 or theta in found:
                raise UsageError(f"{path} does not end with a unique threshold in [0, 1]; rename it.")
            found[theta] = path
    return found


def _core(path: Path, name: str, index: IntArray, label: IntArray) -> IntArray:
    """Read the core's classes of these inputs; the log may have more."""
    if not path.exists():
        raise UsageError(f"the core's log {path} does not exist; give a log of its predictions.")
    result = load_result(path)
    if result.kind != LogKind.PREDICTION.value:
        raise UsageError(
            f"{path} holds a {result.kind}, which does not have the core's answers to clean inputs; give a log with "
            "the columns idx, label and predict."
        )
    known, labels, classes = (result.array(column) for column in ("index", "label", "predict"))
    lacking = np.setdiff1d(index, known)
    if len(lacking):
        raise UsageError(f"the core {path} is about other inputs than {name}: it lacks input {lacking[0]}.")
    place = np.searchsorted(known, index)
    other = labels[place] != label
    if other.any():
        at = int(np.argmax(other))
        raise UsageError(
            f"the core {path} has other labels than {name}: {labels[place][at]} instead of {label[at]} for input "
            f"{index[at]}; give predictions of the same data."
        )
    return np.asarray(classes[place])


def _load(path: Path, wanted: LogKind, certifier: Outcomes | None = None) -> Result:
    result = load_result(path)
    if result.kind != wanted.value:
        raise UsageError(f"{path} must hold a {wanted.value}, but holds a {result.kind}.")
    if certifier is not None and not np.array_equal(result.array("index"), certifier.index):
        raise UsageError(f"{path} is about other inputs than {certifier.name}_certification; use logs of the same.")
    return result


def _behind(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _column(result: Result, name: str) -> Any:
    if not result.has(name):
        raise UsageError(f"{result.path} has no column {_SPELLING[name]!r}, which is needed here.")
    return result.array(name)


def _refuse_several_noises(result: Result) -> None:
    table = result.table(["sigma"])
    per_input = any(column.null_count < len(column) for column in table.columns)
    if per_input or result.settings.experts is not None:
        what = "noise chosen for each input" if per_input else "several experts"
        raise UsageError(f"{result.path} was certified with {what}; ACES needs one smoothed classifier for all inputs.")


def _common(result: Result, key: str) -> Any:
    table = result.table([key])
    values = table[key].unique().to_pylist() if table.column_names else [None]
    if len(values) != 1 or values[0] is None:
        shown = " and ".join(map(str, values[:2]))
        raise UsageError(f"{result.path} holds rows with different {key} ({shown}); evaluate them separately.")
    return values[0]


def _runner_up(result: Result, noise: Noise, selection: IntArray, n: int, alpha: float) -> NDArray[np.bool_]:
    """Return which inputs use the runner-up bound."""
    return runner_up_inputs(result.settings.procedure.bound or PLAIN, noise, selection, _common(result, "n0"), n, alpha)


def _noise(result: Result) -> tuple[Noise, Norm]:
    noise = result.settings.build_noise({} if result.settings.noise is None else None)
    assert noise is not None
    return noise, noise.resolve_norm(_common(result, "norm"))

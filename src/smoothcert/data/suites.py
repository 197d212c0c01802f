"""Suites of corrupted sets: the published ones, or any dataset corrupted on the fly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smoothcert.data.base import Dataset
from smoothcert.data.corruptions import CORRUPTIONS, SEVERITIES, Corrupted, check_severity
from smoothcert.data.loading import load
from smoothcert.data.registry import DATASETS, IDENTITY
from smoothcert.types import StrPath, UsageError, unknown_name


@dataclass(frozen=True)
class SuiteSet:
    """One set of a suite: its corruption (``identity`` if clean), its severity (None if it has none), and its data."""

    type: str
    severity: int | None
    dataset: Dataset

    @property
    def name(self) -> str:
        """The name of its run folder: ``fog-3``, or ``fog`` without a severity."""
        return self.type if self.severity is None else f"{self.type}-{self.severity}"


def load_suite(
    name: StrPath,
    *,
    types: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
    split: str = "test",
    root: StrPath | None = None,
    seed: int = 0,
) -> list[SuiteSet]:
    """Load the sets of a suite of corruptions, the clean one first.

    Args:
        name: A published suite (``mnist-c``, ``cifar10-c``), or any dataset that :func:`smoothcert.data.load` accepts,
            which is then corrupted on the fly.
        types: The corruptions, ``identity`` for the clean set; by default all, or for a published suite those of the
            usual mean, and the clean set.
        severities: The severities; by default all.
        seed: The seed of corruptions made on the fly.

    Returns:
        The sets, by type and then by severity.

    Example:
        >>> [member.name for member in load_suite("digits", types=["identity", "fog"], severities=[1, 5])]
        ['identity', 'fog-1', 'fog-5']
    """
    info = DATASETS.get(str(name))
    if info is not None and info.types:
        kinds = _chosen(types, info.types, (*info.types, *info.more_types), f"corruption of {info.name}")
        if severities is not None and not info.severities:
            raise UsageError(f"the corruptions of {info.name} have a single severity; leave the severities out.")
        places = _places(kinds, severities, info.severities)
        names = ["/".join([info.name, kind, *([] if level is None else [str(level)])]) for kind, level in places]
        sets = [load(part, split=split, root=root) for part in names]
    else:
        clean = load(name, split=split, root=root)
        if len(clean.shape) != 3:
            raise UsageError(f"{clean.name} has inputs of shape {clean.shape}, not images that could be corrupted.")
        usual = [kind for kind, corruption in CORRUPTIONS.items() if corruption.fits(clean.shape[0])]
        places = _places(_chosen(types, usual, CORRUPTIONS, "corruption"), severities, SEVERITIES)
        sets = [clean if level is None else Corrupted(clean, kind, level, seed) for kind, level in places]
    return [SuiteSet(kind, level, dataset) for (kind, level), dataset in zip(places, sets, strict=True)]


def _chosen(types: Sequence[str] | None, usual: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    chosen = [IDENTITY, *usual] if types is None else list(types)
    for kind in chosen:
        if kind not in (IDENTITY, *known):
            raise unknown_name(what, kind, (IDENTITY, *known))
    if not chosen or len(set(chosen)) < len(chosen):
        raise UsageError("name at least one type of corruption, and each once.")
    return sorted(chosen, key=lambda kind: kind != IDENTITY)


def _places(
    kinds: Sequence[str], severities: Sequence[int] | None, known: Sequence[int]
) -> list[tuple[str, int | None]]:
    """Return the type and severity of every set."""
    levels = known if severities is None else severities
    for severity in levels:
        check_severity(severity)
    if severities is not None and (not levels or len(set(levels)) < len(levels)):
        raise UsageError("name at least one severity, and each once.")
    return [(kind, level) for kind in kinds for level in ((None,) if kind == IDENTITY or not levels else levels)]

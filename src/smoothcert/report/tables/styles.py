"""The layouts of the papers' main tables, by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TableStyle:
    """The columns of a table of certified accuracy, and how they are printed.

    The papers mark values by different rules (better than a baseline, best of all, blue and red); here the best is
    always bold and the runner-up underlined.

    Attributes:
        source: The paper whose tables look like this.
        name: The heading of the column of names.
        over: The heading over the radii; ``{norm}`` becomes the norm.
        acr: Whether the average certified radius is shown.
        natural: Whether natural accuracy (NAC), by PREDICT, is shown where it is known.
        counts: Whether abstentions and the number of inputs are shown.
        percent: Whether accuracies are per cent, or else shares of 1.
        digits: The decimals of accuracies; one more where seeds are averaged.
        by_scale: Whether runs are named by their noise scale, where all scales differ, and not grouped by it.
    """

    source: str
    name: str = "run"
    over: str = "Certified accuracy (%) at {norm} radius"
    acr: bool = True
    natural: bool = False
    counts: bool = False
    percent: bool = True
    digits: int = 1
    by_scale: bool = False


TABLE_STYLES = {
    "plain": TableStyle(source="ours", counts=True),
    "catrs": TableStyle(source="Jeong et al. (2023), CAT-RS, Tables 3 to 6", name="Methods"),
    "smoothmix": TableStyle(source="Jeong et al. (2021), SmoothMix, Tables 4 to 7", name="Models"),
    "aces": TableStyle(
        source="Horváth et al. (2022), ACES, Tables 1 to 17",
        name="Training",
        over="Certified accuracy (%) at {norm} radius r",
        natural=True,
    ),
    "cohen": TableStyle(
        source="Cohen et al. (2019), tables of the appendix: a line per σ, shares of 1",
        name="σ",
        over="Certified accuracy at {norm} radius r",
        acr=False,
        percent=False,
        digits=2,
        by_scale=True,
    ),
}
"""Every style by name; a new one is one entry here."""

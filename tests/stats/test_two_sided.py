"""Confidence sequences of one fixed class, against their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from smoothcert.stats import lower_bound, upper_bound
from smoothcert.stats.evalues import log_e
from smoothcert.stats.sequential import LAST_LOOK
from smoothcert.stats.two_sided import EVEN, PRECISION, TwoSided, lower_sequence, upper_sequence
from smoothcert.types import UsageError

LEVEL, N_MAX = 0.0005, 20_000
COUNTS = [
    (k, n) for n in (1, 10, 100, 3_000, 19_999) for k in sorted({0, 1, n // 100, n // 3, n // 2, n - n // 50, n - 1, n})
]


@pytest.mark.parametrize(("k", "n"), COUNTS)
def test_the_lower_bound_is_the_largest_rejected_threshold(k, n):
    found = lower_sequence(k, n, LEVEL, N_MAX)
    bar = -math.log(LEVEL * (1 - LAST_LOOK))
    assert 0 <= found < max(k / n, 1e-300)
    if found > 0:
        assert log_e(k, n, found, N_MAX, "up", tuned_to=EVEN) >= bar
        above = float(special.expit(special.logit(found) + 2 * PRECISION))
        assert log_e(k, n, above, N_MAX, "up", tuned_to=EVEN) < bar
        assert special.ndtri(above) - special.ndtri(found) < 2 * PRECISION
    else:
        assert log_e(k, n, 1e-15, N_MAX, "up", tuned_to=EVEN) < bar


def test_the_upper_bound_mirrors_it_and_both_grow_with_the_count():
    n = 400
    counts = range(n + 1)
    lower, upper = (np.array([f(k, n, LEVEL, N_MAX) for k in counts]) for f in (lower_sequence, upper_sequence))
    assert np.all(upper >= 1 - lower[::-1])
    assert np.all(upper <= 1 - lower[::-1] + 1e-15)
    assert np.all(np.diff(lower) >= 0)
    assert np.all(np.diff(upper) >= 0)
    assert np.all(lower <= lower_bound(np.arange(n + 1), n, LEVEL))
    assert np.all(upper >= upper_bound(np.arange(n + 1), n, LEVEL))
    assert (lower[0], upper[-1]) == (0, 1)


def test_the_last_look():
    k, n = 600, 1_000
    assert lower_sequence(k, n, LEVEL, n, last_look=1.0) == lower_bound(k, n, LEVEL)
    assert upper_sequence(k, n, LEVEL, n, last_look=1.0) == pytest.approx(upper_bound(k, n, LEVEL), abs=1e-15)
    assert lower_sequence(k, n, LEVEL, n) >= lower_bound(k, n, LAST_LOOK * LEVEL)
    assert lower_sequence(k, n - 1, LEVEL, n, last_look=1.0) == 0.0
    with pytest.raises(UsageError, match="level"):
        lower_sequence(1, 2, 0.0, 100)


def test_the_level_holds_at_all_times_exactly():
    """The probability that the bound is ever at least p, by the distribution of the count over all n."""
    n_max, level = 120, 0.05
    for p in (0.02, 0.2, 0.5, 0.8, 0.98):
        mass, false = np.ones(1), 0.0
        for n in range(1, n_max + 1):
            mass = np.convolve(mass, [1 - p, p])
            wrong = np.array([lower_sequence(k, n, level, n_max) >= p for k in range(n + 1)])
            false += mass[wrong].sum()
            mass[wrong] = 0.0
        assert false <= level
        assert false > 0.4 * level or p > 0.9  # too few votes to reject so large a threshold


def test_counts_of_the_classes():
    test = TwoSided((3, 9, 5, 0), 0.01, 0.02, N_MAX)
    counts, n = (30, 90, 20, 45), 200  # 15 invalid
    assert test.guess == 1
    assert test.proved(counts, n) == (lower_sequence(90, n, 0.005, N_MAX), upper_sequence(60, n, 0.005, N_MAX))
    second = lower_sequence(20, n, 0.01, N_MAX)
    assert test.possible(counts, n) == (min(upper_sequence(105, n, 0.01, N_MAX), 1 - second), second)
    assert TwoSided((4, 4, 4), 0.01, 0.01, N_MAX).guess == 0
    assert TwoSided((5,), 0.01, 0.01, N_MAX).proved((9,), 10)[1] == upper_sequence(1, 10, 0.005, N_MAX)
    assert TwoSided((5,), 0.01, 0.01, N_MAX).possible((9,), 10)[1] == 0.0


def test_rough_bounds_are_close_and_never_too_cautious_here():
    """A decision is looked for only where they suggest one."""
    test = TwoSided((5, 3), 0.001, 0.001, 100_000)
    rng = np.random.default_rng(0)
    for n in (20, 60, 200, 1_000, 10_000):
        for p in rng.uniform(0.3, 0.999, 40):
            counts = rng.multinomial(n, [p, 0.7 * (1 - p), 0.3 * (1 - p)]).tolist()
            for what, sign in (("proved", 1), ("possible", -1)):
                rough, exact = (_distance(*getattr(test, what)(counts, n, roughly=each)) for each in (True, False))
                if 0 < exact < math.inf:
                    assert 0 <= sign * (rough - exact) < (math.inf if n < 10_000 else 0.2)


def _distance(p: float, q: float) -> float:
    return float(special.ndtri(p) - special.ndtri(min(q, 1 - p)))

"""Sequential tests of a vote share against a threshold, and a confidence bound that holds at any time.

After n votes, k of them for the guessed class, the evidence that its probability p exceeds the threshold t is

    E_up(n, k) = ∫ q^k (1 − q)^(n − k) dπ(q | q > t) / (t^k (1 − t)^(n − k)),

a supermartingale under every p ≤ t, so P(E_up ever ≥ 1/alpha) ≤ alpha (Ville, 1939): one may look as often as one
likes and stop whenever one likes. E_down is the same over q < t and tests p ≥ t. Mixtures over a prior π are due to
Robbins (1970); Howard et al. (2021) survey them; no test with error alpha needs fewer than log(1/alpha) / KL(p‖t)
votes on average (Wald, 1945).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import signal, special, stats

from smoothcert.stats.binomial import FloatArray, IntArray, _as_given, _whole
from smoothcert.types import UsageError

BLOCK = 20
"""Votes come in blocks of so many; the test looks after whole blocks."""

Side = Literal["up", "down"]


@dataclass(frozen=True)
class Prior:
    """A finite mixture of Beta distributions over the probability of the guessed class.

    Attributes:
        weights: Positive weights of the components, summing to 1.
        a: First Beta parameter of each component.
        b: Second Beta parameter of each component.
    """

    weights: tuple[float, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    separate: bool = False

    @classmethod
    def informed(cls, k0: int, n0: int, w=0.9, s=1.0, separate=False) -> Prior:
        return cls((w, 1 - w), (k0 * s + 0.5, 0.5), ((n0 - k0) * s + 0.5, 0.5), separate)


JEFFREYS = Prior((1.0,), (0.5,), (0.5,))


def log_e_up(k: ArrayLike, n: ArrayLike, threshold: ArrayLike, prior: Prior = JEFFREYS) -> float | FloatArray:
    return _as_given(_log_e(*_checked(k, n, threshold), prior, "up"))


def log_e_down(k: ArrayLike, n: ArrayLike, threshold: ArrayLike, prior: Prior = JEFFREYS) -> float | FloatArray:
    return _as_given(_log_e(*_checked(k, n, threshold), prior, "down"))


def _log_e(k: FloatArray, n: FloatArray, t: FloatArray, prior: Prior, side: Side) -> FloatArray:
    joint, before = [], []
    for weight, a, b in zip(prior.weights, prior.a, prior.b, strict=True):
        p0 = _log_part(np.asarray(a), np.asarray(b), t, side)
        before.append(np.log(weight) + p0 * (not prior.separate))
        joint.append(
            np.log(weight) + special.betaln(a + k, b + n - k) - special.betaln(a, b) + _log_part(a + k, b + n - k, t, side) - p0 * prior.separate
        )
    evidence = np.logaddexp.reduce(joint) - np.logaddexp.reduce(before)
    allowance = 1e-9 + 1e-13 * n
    return np.asarray(evidence - k * np.log(t) - (n - k) * np.log1p(-t) - allowance, dtype=np.float64)


def _log_part(a: FloatArray, b: FloatArray, t: FloatArray, side: Side) -> FloatArray:
    """Logarithm of the mass of Beta(a, b) above (up) or below (down) t."""
    a, b, t = np.broadcast_arrays(a, b, t)
    mass = special.betaincc(a, b, t) if side == "up" else special.betainc(a, b, t)
    tiny = mass < 1e-290
    out = np.asarray(np.log(np.where(tiny, 1.0, mass)))
    if np.any(tiny):
        a, b, x = (b[tiny], a[tiny], 1.0 - t[tiny]) if side == "up" else (a[tiny], b[tiny], t[tiny])
        out[tiny] = _log_tail(a, b, x)
    return out


def _log_tail(a: FloatArray, b: FloatArray, x: FloatArray) -> FloatArray:
    """Logarithm of the regularised incomplete beta function far below the mean, by its continued fraction.

    DLMF 8.17.22.
    """
    rest = np.zeros_like(x)
    for m in range(60, -1, -1):
        if m > 0:
            pass
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)) / (1.0 + rest)
        rest = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / (1.0 + odd) if m else odd
    return a * np.log(x) + b * np.log1p(-x) - np.log(a) - special.betaln(a, b) - np.log1p(rest)


def _checked(k, n, threshold):
    k, n = _whole(k, "k"), _whole(n, "n")
    threshold = np.asarray(threshold, dtype=np.float64)
    return tuple(np.broadcast_arrays(k.astype(float), n.astype(float), threshold))


def check_times(n_max: int, growth=0.05, block=BLOCK) -> IntArray:
    times = {n_max, *(10**e for e in range(2, 12) if 10**e < n_max)}
    n = block
    while n < n_max:
        times.add(n)
        n = max(n + block, int(n * (1 + growth)) // block * block)
    return np.array(sorted(times), dtype=np.int64)


@dataclass(frozen=True)
class Boundary:
    threshold: float
    alpha: float
    beta: float | None
    n: IntArray
    certify: IntArray
    refute: IntArray


@lru_cache(maxsize=4096)
def boundary(threshold: float, alpha: float, beta: float | None, n_max: int, prior: Prior = JEFFREYS, growth=0.05, block=BLOCK) -> Boundary:
    n = check_times(n_max, growth, block)
    certify = _smallest(n, threshold, alpha, prior, "up")
    refute = np.full_like(n, -1) if beta is None else n - _smallest(n, threshold, beta, prior, "down")
    return Boundary(threshold, alpha, beta, n, certify, refute)


def _smallest(n, threshold, level, prior, side):
    """Smallest count (of the guessed class for up, of the others for down) whose e-value reaches 1/level; n+1 if none."""
    low, high = np.full_like(n, -1), n + 1
    nf, t = n.astype(float), np.full(n.shape, threshold)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        m = np.clip(middle, 0, n)
        k = m if side == "up" else n - m
        enough = _log_e(k.astype(float), nf, t, prior, side) >= -np.log(level)
        move = high - low > 1
        high = np.where(move & enough, middle, high)
        low = np.where(move & ~enough, middle, low)
    return high


class Characteristics(NamedTuple):
    certify: float
    refute: float
    undecided: float
    expected_n: float


def operating_characteristics(boundary: Boundary, p: float) -> Characteristics:
    certify = refute = expected = 0.0
    first, mass = 0, np.ones(1)
    before = 0
    for n, up, down in zip(boundary.n.tolist(), boundary.certify.tolist(), boundary.refute.tolist(), strict=True):
        left = mass.sum()
        start, pmf = _increment(n - before, p)
        expected += (n - before) * left
        mass = np.maximum(signal.convolve(mass, pmf), 0.0)
        first += start
        before = n
        cut = max(up - first, 0)
        certify += mass[cut:].sum()
        mass = mass[:cut]
        cut = min(max(down + 1 - first, 0), len(mass))
        refute += mass[:cut].sum()
        mass = mass[cut:]
        first += cut
        some = np.flatnonzero(mass > 1e-25)
        if len(some) == 0:
            mass = np.zeros(0)
            break
        mass = mass[some[0]:some[-1] + 1]
        first += int(some[0])
    return Characteristics(float(certify), float(refute), float(mass.sum()), float(expected))


@lru_cache(maxsize=1024)
def _increment(n: int, p: float):
    spread = 10.0 * np.sqrt(n * p * (1 - p)) + 50.0
    k = np.arange(max(0, int(n * p - spread)), min(n, int(n * p + spread)) + 1)
    return int(k[0]), stats.binom.pmf(k, n, p)
def wald_bound(p,t,a):
    kl=special.rel_entr(p,t)+special.rel_entr(1-p,1-t)
    return np.log(1/a)/kl if kl else np.inf

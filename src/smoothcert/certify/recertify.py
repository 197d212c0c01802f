"""Certify a model from the stored votes of a similar one (Ugare, Suresh, Banerjee, Misailovic and Singh, 2024)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from smoothcert.certify.base import Procedure, Task, require_count, require_probability
from smoothcert.classifiers import Pair
from smoothcert.classifiers.identity import model_identity
from smoothcert.classifiers.sealed import Sealed
from smoothcert.sampling import RECERTIFICATION, Classifier, Draw, Statistic, Steps
from smoothcert.sampling.copies import input_digest
from smoothcert.sampling.statistics import Changed, SecondTopClass
from smoothcert.stats.binomial import IntArray
from smoothcert.stats.decisions import transferred_bound, transferred_levels
from smoothcert.types import Certificate, UsageError, Votes


@dataclass(frozen=True, eq=False)
class StoredVotes:
    """The votes of a model on some inputs, from a run with a fixed number of samples.

    Attributes:
        inputs: The hash of each input.
        selection: Their selection votes, (inputs, classes), of ``n0`` samples.
        counts: Their estimation votes, (inputs, classes), of ``n`` samples.
    """

    inputs: Sequence[str]
    selection: IntArray
    n0: int
    counts: IntArray
    n: int

    def of(self, task: Task) -> tuple[Votes, Votes]:
        """Return the selection and estimation votes of an input.

        Raises:
            UsageError: If there are none.
        """
        place = None if task.x is None else self._places.get(input_digest(task.x))
        if place is None:
            raise UsageError("the run of the original model has no votes for this input; give the data of that run.")
        selection, counts = (tuple(votes[place].tolist()) for votes in (self.selection, self.counts))
        return Votes(self.n0, selection), Votes(self.n, counts)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {digest: place for place, digest in enumerate(self.inputs)}

    @property
    def digest(self) -> str:
        """A hash of all votes."""
        found = hashlib.sha256(repr((self.n0, self.n, *self.inputs)).encode())
        for votes in (self.selection, self.counts):
            found.update(np.ascontiguousarray(votes).tobytes())
        return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Recertify(Procedure):
    """Bound the class of a model g from stored votes of a similar model f, and how often their votes differ.

    A is the class that f's selection votes guess. If f votes for A, then so does g, except on the copies that g
    *changes*: p_A(g) ≥ p_A(f) − ζ with ζ = P(f(x+δ) = A ≠ g(x+δ)). Ugare et al. (2024) bound all disagreements; only
    those at the cost of A matter. ζ, and p_A(g) directly, are bounded from n fresh copies that both models classify:

        p_A(g) ≥ max(L_f − U_ζ, L_g),  L_f at 0.1 α, U_ζ and L_g at 0.45 α each.

    Where f gave A at least the share ``direct`` of its votes, n copies show as much about p_A(g) as about ζ. Then f is
    not called, and the bound is L_g at 0.9 α. If ζ is large, L_g is the larger bound, so that nothing else has to be
    sampled; g abstains where neither exceeds ½.

    The certificate is wrong with probability at most α. The fresh copies belong to a stage that the run of f did not
    draw, so they are independent of its votes. L_f > p_A(f) has probability at most 0.1 α, over the stored estimation
    votes. Given all stored votes, A and the branch are fixed, and the bounds on fresh copies are wrong with probability
    at most 0.9 α in both branches. Their sum is α. The branch without f must not use the share of L_f, too: stored
    votes that make L_f too high might also choose the branch. g may depend on the stored votes of f, since L_f is a
    statement about f alone; it must not depend on the fresh noise.

    Args:
        pair: The original model f, and the model g that is certified, the same that is smoothed.
        stored: The votes of f.
        n: Fresh noisy copies of each input.
        direct: Share of the original's votes from which its class is bounded by the new model's votes alone.
    """

    name: ClassVar[str] = "recertify"
    decides_early: ClassVar[bool] = False

    pair: Classifier
    stored: StoredVotes
    n: int = 10_000
    direct: float = 0.99
    n0: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n0", self.stored.n0)
        super().__post_init__()
        require_count("n", self.n)
        require_probability("direct", self.direct)

    @property
    def others(self) -> tuple[tuple[Classifier, tuple[Statistic, ...]], ...]:
        return ((self.pair, (Changed(), SecondTopClass())),)

    def sealed(self, seal: Callable[[Classifier], Sealed]) -> Recertify:
        if not isinstance(self.pair, Pair):
            return self
        _, certified = self.pair.models
        return replace(self, pair=Sealed(self.pair, model_identity(certified)))  # a certificate is about g alone

    @property
    def expected_samples(self) -> int:
        return self.n

    def certify(self, task: Task) -> Steps[Certificate]:
        norm = task.noise.resolve_norm(self.norm)
        selection, original = self.stored.of(task)
        if len(original.counts) != task.num_classes:
            raise UsageError(
                f"the original model has {len(original.counts)} classes and the new one {task.num_classes}; give a "
                "model with the same classes."
            )
        guess, changed = int(np.argmax(selection.counts)), None
        if original.counts[guess] >= self.direct * original.n:
            (votes,) = yield Draw(RECERTIFICATION, self.n)
        else:
            changed, votes = yield Draw(RECERTIFICATION, self.n, source=1)
        split = transferred_levels(self.alpha, changed is not None)
        p_lower = transferred_bound(
            original.counts[guess],
            original.n,
            None if changed is None else changed.counts[guess],
            votes.counts[guess],
            self.n,
            self.alpha,
        )
        certificate = task.certificate(guess, float(p_lower), norm, self.alpha, split, votes, selection)
        return replace(certificate, original=original, changed=changed)

    def config(self) -> dict[str, Any]:
        settings = super().config()
        del settings["pair"], settings["stored"]
        assert isinstance(self.pair, Pair)
        original = {"model": model_identity(self.pair.models[0]), "n": self.stored.n, "votes": self.stored.digest}
        return {**settings, "original": original}

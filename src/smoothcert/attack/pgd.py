"""PGD against the smoothed classifier: an upper bound on its robust accuracy, as certificates are a lower bound.

The attack is PGD on the soft smoothed classifier (Salman et al., 2019). PREDICT (Cohen, Rosenfeld and Kolter, 2019)
judges its end point with noise the attack has not seen. An input is **broken** at r when PREDICT returns a class other
than the label at a point within r: at the input itself, or at the end of the attack at r or a smaller radius.
**Empirical accuracy** is the share of inputs that are not broken. An abstention breaks nothing, because the smoothed
classifier may still return the label there; such inputs are counted separately. So empirical accuracy bounds the true
robust accuracy from above, as certified accuracy does from below, and an input that is both certified and broken at r
is a contradiction: the certificate or PREDICT is wrong, each with probability at most α.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Generator, Tensor

from smoothcert.certify import Cohen, Smoothed
from smoothcert.data.inputs import Indexable, labelled_input
from smoothcert.sampling.seeds import fresh_seed
from smoothcert.sampling.soft import attack_generator
from smoothcert.stats import top_class_p_value
from smoothcert.store.selection import select
from smoothcert.training.attacks import Objective, ascend, shorten, smoothed_nll, unit
from smoothcert.types import ABSTAIN, Norm, Prediction, UsageError


class AttackOutcome(str, Enum):
    """The answer of PREDICT at the end of the attack: the label, an abstention, or another class."""

    CORRECT = "correct"
    ABSTAINED = "abstained"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class AttackSettings:
    """Settings of the attack and of PREDICT.

    Args:
        steps: Gradient steps T, of length 2r/T.
        copies: Noisy copies of an input behind each gradient.
        restarts: Attacks on each input: the first starts at the input, the others on the sphere around it. PREDICT
            judges only the one with the largest loss at its end.
        fresh_noise: Whether each step draws new noise, which makes the stronger attack, or all steps share theirs.
        votes: Votes of PREDICT.
        alpha: Probability that an answer of PREDICT is wrong.
        rows: Noisy copies per forward pass of the attack, at least those of one input; does not change the noise.
    """

    steps: int = 20
    copies: int = 32
    restarts: int = 1
    fresh_noise: bool = True
    votes: int = 1_000
    alpha: float = 0.001
    rows: int = 512

    def __post_init__(self) -> None:
        for name in ("steps", "copies", "restarts", "rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}.")
        if top_class_p_value(self.judge.n, 0) > self.alpha:
            raise UsageError(f"{self.votes} votes always abstain at alpha = {self.alpha:g}; use more votes.")

    @property
    def judge(self) -> Cohen:
        """The procedure whose PREDICT judges."""
        return Cohen(n=self.votes, alpha=self.alpha)


@dataclass(frozen=True, eq=False)
class AttackResult:
    """The result of the attack on one input at one ℓ2 radius.

    A broken input keeps its first adversarial input at every larger radius.
    """

    index: int
    label: int  # the true class
    radius: float
    outcome: AttackOutcome
    prediction: Prediction  # of PREDICT at the adversarial input
    distance: float  # from the input to the adversarial input
    adversarial: Tensor | None  # on the CPU; None if ``keep`` is false

    def contradicts(self, label: int, radius: float) -> bool:
        """Return whether PREDICT returns a class other than the certified ``label`` within the certified ``radius``."""
        return self.distance < radius and len({label, self.prediction.label, ABSTAIN}) == 3


def attack_input(
    smoothed: Smoothed,
    x: Any,
    y: int,
    radius: float,
    settings: AttackSettings | None = None,
    *,
    seed: int | None = None,
    index: int = 0,
) -> AttackResult:
    """Attack the smoothed classifier at one input of class ``y``, as :func:`attack_dataset` does.

    Example:
        >>> from smoothcert import Gaussian
        >>> smoothed = Smoothed(lambda x: torch.cat([0.5 - x, x - 0.5], dim=1), Gaussian(0.1))
        >>> [attack_input(smoothed, torch.tensor([0.7]), 1, radius).outcome.value for radius in (0.1, 0.3)]
        ['correct', 'broken']
    """
    attack = _Attack(smoothed, [radius], settings or AttackSettings(), seed)
    target = attack.target(index, x, int(y))
    attack.require_gradient(target.x)
    return attack.batch([target])[0]


def adversarial_input(
    smoothed: Smoothed,
    x: Any,
    label: int,
    radius: float,
    settings: AttackSettings | None = None,
    *,
    seed: int | None = None,
) -> Tensor:
    """Return the input that the attack on class ``label`` finds below ℓ2 distance ``radius``, without judging it."""
    attack = _Attack(smoothed, [radius], settings or AttackSettings(), seed)
    target = attack.target(0, x, int(label))
    attack.require_gradient(target.x)
    return attack._climb([target], radius)[0]


def attack_dataset(
    smoothed: Smoothed,
    dataset: Indexable,
    radii: Sequence[float],
    settings: AttackSettings | None = None,
    *,
    every: int = 1,
    start: int = 0,
    stop: int | None = None,
    seed: int | None = None,
    progress: bool = True,
    keep: bool = True,
) -> list[AttackResult]:
    """Attack the smoothed classifier at inputs ``start``, ``start + every``, … below ``stop`` of a dataset.

    All noise is a function of (seed, index, radius, restart, step) and independent of other inputs, radii and batches.

    Args:
        smoothed: The smoothed classifier; its model must be differentiable by PyTorch.
        radii: The ℓ2 radii, in any order.
        seed: The seed of all noise; a fresh one by default.
        keep: Whether the results keep the adversarial inputs.

    Returns:
        One result per input and radius, by index and then by radius.

    Raises:
        UsageError: If nothing is selected, an argument is invalid, or the model has no gradient.
    """
    indices = select(len(dataset), every=every, start=start, stop=stop)
    attack = _Attack(smoothed, radii, settings or AttackSettings(), seed)
    first = attack.target(indices[0], *labelled_input(dataset, indices[0]))
    attack.require_gradient(first.x)
    smoothed.prepare(first.x, samples=len(indices) * (1 + len(attack.radii)) * attack.settings.votes)
    results = attack.batches(attack.target(index, *labelled_input(dataset, index)) for index in indices)
    total = len(indices) * len(attack.radii)
    shown = track(results, "attack", total, console=Console(stderr=True), disable=not progress)
    return [result if keep else replace(result, adversarial=None) for result in shown]


@dataclass(frozen=True, eq=False)
class _Target:
    index: int
    x: Tensor
    label: int


class _Attack:
    """An attack on any inputs with fixed settings."""

    def __init__(self, smoothed: Smoothed, radii: Sequence[float], settings: AttackSettings, seed: int | None) -> None:
        if not radii or not all(math.isfinite(radius) and radius > 0 for radius in radii):
            raise UsageError(f"an attack needs radii above 0, got {', '.join(map(str, radii)) or 'none'}.")
        if smoothed.experts:
            raise UsageError("a router cannot be attacked as one model; attack its experts.")
        smoothed.noise.resolve_norm(Norm.L2)
        self.smoothed, self.settings, self.seed = smoothed, settings, fresh_seed() if seed is None else seed
        self.radii = sorted({float(radius) for radius in radii})
        self.model = smoothed.sealed()

    def target(self, index: int, x: Any, label: int) -> _Target:
        tensor, classes = self.smoothed.check(x), self.smoothed.num_classes or 0
        if not 0 <= label < classes:
            raise UsageError(f"input {index} has label {label}, but the model has {classes} classes.")
        return _Target(index, tensor, label)

    def require_gradient(self, x: Tensor) -> None:
        """Refuse a model without a gradient."""
        at = (x + self._draw(x, Generator(x.device).manual_seed(0))).requires_grad_(True)
        slope, reason = None, "it is zero"
        try:
            with torch.enable_grad():
                logits = self.model(at)
                mixed = (logits * torch.arange(1, 1 + logits.shape[1], device=x.device).sqrt()).sum()
                (slope,) = torch.autograd.grad(mixed, at)
        except (RuntimeError, TypeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
        if slope is None or not slope.any():
            raise UsageError(f"the model has no gradient by its input ({reason}), which the attack needs.")

    def batches(self, targets: Iterable[_Target]) -> Iterator[AttackResult]:
        """Attack inputs in batches of one shape that fit into a forward pass."""
        waiting: list[_Target] = []
        for target in targets:
            full = len(waiting) >= self.settings.rows // self.settings.copies
            if waiting and (full or target.x.shape != waiting[0].x.shape):
                yield from self.batch(waiting)
                waiting = []
            waiting.append(target)
        yield from self.batch(waiting)

    def batch(self, targets: Sequence[_Target]) -> list[AttackResult]:
        """Attack inputs at every radius, the smallest first; a broken input stays broken at larger radii."""
        latest = self._judge(targets, [target.x for target in targets])
        results: list[AttackResult] = []
        for radius in self.radii:
            standing = [t for t in targets if latest[t.index].outcome is not AttackOutcome.BROKEN]
            if standing:
                latest |= self._judge(standing, self._climb(standing, radius))
            results += [replace(latest[target.index], radius=radius) for target in targets]
        return sorted(results, key=lambda result: result.index)

    def _climb(self, targets: Sequence[_Target], radius: float) -> list[Tensor]:
        """Return the ends of the ascent; of several restarts, the one with the largest loss under new noise."""
        with torch.no_grad():
            ends = torch.stack([self._ascend(targets, radius, restart) for restart in range(self.settings.restarts)])
            loss = self._loss(targets, radius, len(ends), 0)
            highest = torch.stack([loss(end) for end in ends]).nan_to_num(nan=-math.inf).argmax(0).cpu()
        chosen = ends[highest, torch.arange(len(targets))]
        return [self._within(target.x, end, radius) for target, end in zip(targets, chosen, strict=True)]

    def _ascend(self, targets: Sequence[_Target], radius: float, restart: int) -> Tensor:
        x = at = torch.stack([target.x for target in targets])
        steps, clamp = self.settings.steps, self.smoothed.input_range
        if restart:
            sources = (self._generator(target, radius, restart, -1) for target in targets)
            at = x + radius * unit(torch.stack([x[0].clone().normal_(generator=source) for source in sources]))
        for step in range(steps):
            if step == 0 or self.settings.fresh_noise:
                loss = self._loss(targets, radius, restart, step)
            moved = ascend(loss, at, steps=1, step=2 * radius / steps, radius=radius, center=x, clamp=clamp)
            at = torch.where(moved.isfinite(), moved, at)  # an invalid gradient moves nothing
        return at

    def _loss(self, targets: Sequence[_Target], radius: float, restart: int, step: int) -> Objective:
        noise = [self._draw(t.x, self._generator(t, radius, restart, step)) for t in targets]
        labels = torch.tensor([target.label for target in targets], device=noise[0].device)
        loss = smoothed_nll(self.model, torch.stack(noise, dim=1), labels)
        uplift = torch.finfo(noise[0].dtype).max ** 0.3  # the gradient of a confident model underflows
        return lambda x: uplift * loss(x)

    def _draw(self, x: Tensor, generator: Generator) -> Tensor:
        copies = x.new_empty((self.settings.copies, *x.shape))
        return self.smoothed.noise.sample(torch.zeros_like(x), copies, generator)

    def _generator(self, target: _Target, radius: float, restart: int, step: int) -> Generator:
        use = struct.pack("<dQq", radius, restart, step)
        return attack_generator(self.seed, target.index, target.x.device, use)

    def _judge(self, targets: Sequence[_Target], points: Sequence[Tensor]) -> dict[int, AttackResult]:
        judge, results = self.settings.judge, {}
        pairs = {target.index: (target, point) for target, point in zip(targets, points, strict=True)}
        inputs = ((index, point) for index, (_, point) in pairs.items())
        for job, answer in self.smoothed.run(inputs, judge, judge.predict, seed=self.seed, count=len(pairs)):
            target, point = pairs[job.index]
            outcome = AttackOutcome.CORRECT if answer.label == target.label else AttackOutcome.BROKEN
            outcome = AttackOutcome.ABSTAINED if answer.abstained else outcome
            distance = float(torch.dist(target.x.double(), point.double()))
            results[job.index] = AttackResult(job.index, target.label, 0.0, outcome, answer, distance, point.cpu())
        return results

    def _within(self, x: Tensor, point: Tensor, radius: float) -> Tensor:
        """Move a point towards ``x`` until it is inside the ball after rounding, and on the grid of the noise."""
        for slack in (1e-6, 1e-4, 1e-2, 0.1, 0.3):
            inside = (x.double() + shorten((point.double() - x.double())[None], radius * (1 - slack))[0]).to(x.dtype)
            inside = self.smoothed.noise.nearest(inside)
            if torch.dist(x.double(), inside.double()) < radius:
                return inside
        return x

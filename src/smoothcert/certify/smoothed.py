"""The smoothed classifier, which certifies and predicts."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from smoothcert.certify.answering import answer_inputs, answers
from smoothcert.certify.anytime import Anytime
from smoothcert.certify.base import Procedure, Task
from smoothcert.certify.batches import split_batch, stacked
from smoothcert.certify.cohen import Cohen
from smoothcert.certify.inputs import checked_input
from smoothcert.certify.memory import Memory
from smoothcert.certify.router import Routed
from smoothcert.certify.runner import Companions, Runner
from smoothcert.noise import Gaussian, Noise
from smoothcert.sampling import Answer, Classifier, Job, Statistic, Steps
from smoothcert.sampling.runtimes import Runtime
from smoothcert.sampling.seeds import fresh_seed
from smoothcert.sampling.sigma import SigmaSolver
from smoothcert.sampling.soft import mean_softmax
from smoothcert.types import UsageError


class Smoothed(Runner):
    """The smoothed classifier: the class that a base classifier returns most often under noise.

    With ``experts``, the model is a selector with one logit for each expert, and the chosen expert answers. A
    certificate covers both the choice and the answer (see :class:`~smoothcert.certify.router.Routed`); its guarantee is
    ``routed``.

    With ``sigma``, each input gets its own σ. A certificate is then about the classifier smoothed with that σ: another
    input within the radius may get another σ and another class, so the guarantee is ``pointwise``. With a memory in
    addition, answers are cut against earlier ones, and the guarantee is ``memory``: they hold for all inputs within
    their radius. If a procedure cannot reach its target radius with the chosen σ, that of ``noise`` is used.

    Args:
        model: A ``torch.nn.Module`` or any callable that maps a batch of inputs to logits (batch, classes).
        noise: The noise, added to inputs as given: normalisation must be a layer of the model.
        experts: Two or more smoothed classifiers of the same classes, each with its noise. Any other callable, from a
            batch to logits, is a core: if it is chosen, its class is answered with radius 0.
        sigma: Chooses σ for each input, starting from that of ``noise``, which must be Gaussian.
        memory: Keeps answers with different σ consistent.
        procedure: How :meth:`certify` and :meth:`predict` answer if they are not told; ``Cohen()`` by default.
        num_classes: The number of classes; found by a forward pass if not given, and checked otherwise.
        runtime: How the model is run: a name in ``sampling.forwards.RUNTIMES``, a prepared ``Runtime``, or ``"auto"``
            for the fastest that agrees with plain PyTorch.
        input_range: The values that an input may have; ``None`` skips the check.
        batch_size: Noisy copies per forward pass; chosen if not given.
        precision: ``"bf16"`` or ``"fp16"`` autocast, on CUDA only.

    Example:
        >>> import torch
        >>> linear = torch.nn.Linear(4, 2)
        >>> smoothed = Smoothed(linear, Gaussian(0.5))
        >>> smoothed.certify(torch.full((4,), 0.5), Cohen(1000)).n
        1000
    """

    def __init__(
        self,
        model: Classifier,
        noise: Noise,
        *,
        experts: Sequence[Smoothed | Classifier] = (),
        sigma: SigmaSolver | None = None,
        memory: Memory | None = None,
        procedure: Procedure | None = None,
        num_classes: int | None = None,
        runtime: str | Runtime = "auto",
        input_range: tuple[float, float] | None = (0.0, 1.0),
        batch_size: int | None = None,
        precision: str | None = None,
    ) -> None:
        super().__init__(
            model,
            noise,
            num_classes=num_classes,
            runtime=runtime,
            input_range=input_range,
            batch_size=batch_size,
            precision=precision,
        )
        _check_choices(noise, experts, sigma, memory)
        # Fixed, as the noise is: a certificate must be about what was sampled.
        self._experts: tuple[Smoothed | Classifier, ...] = tuple(experts)
        self._sigma, self._memory, self.procedure = sigma, memory, procedure

    @property
    def experts(self) -> tuple[Smoothed | Classifier, ...]:
        """The experts; empty without a router."""
        return self._experts

    @property
    def sigma(self) -> SigmaSolver | None:
        """The solver that chooses σ for each input, if any."""
        return self._sigma

    @property
    def memory(self) -> Memory | None:
        """The memory that keeps answers consistent, if any."""
        return self._memory

    def _forget(self) -> None:
        super()._forget()
        self._companions = Companions()

    def certify(
        self,
        x: Any,
        procedure: Procedure | None = None,
        *,
        seed: int | None = None,
        index: int | Sequence[int] | None = None,
        batch: bool | None = None,
    ) -> Any:
        """Prove a radius around one input, or around each input of a batch.

        A list or tuple of tensors is a batch. A tensor or array is one input if the model accepts it as one, that is,
        if ``model(x[None])`` has the shape (1, classes), and otherwise a batch if the model accepts ``x[0]`` as one.

        Args:
            x: One input (no batch dimension) or a batch: anything that ``torch.as_tensor`` accepts.
            procedure: How to certify; by default that of the constructor.
            seed: The seed of the noise. By default a fresh one from the operating system, which the certificate
                records. A certificate is valid only if model and input were chosen without knowing the noise: give a
                seed to repeat a certificate, not to choose between models by it.
            index: The number of the input, or of each of a batch, in its dataset; other numbers get other noise. By
                default it follows from the values, so equal inputs get equal noise and are wrong together.
            batch: Whether x is a batch; by default its shape decides, as above.

        Returns:
            The :class:`~smoothcert.types.Certificate`; its label is ``ABSTAIN`` if nothing could be proved. For a
            batch, a list of them, each equal to the one that the input gets alone with the same seed and index.

        Raises:
            UsageError: If an input or the model's output is invalid; before any sampling.
        """
        procedure = procedure or self.procedure or Cohen()
        return answer_inputs(self, x, procedure, procedure.certify, seed, index, batch)

    def predict(
        self,
        x: Any,
        procedure: Procedure | None = None,
        *,
        seed: int | None = None,
        index: int | Sequence[int] | None = None,
        batch: bool | None = None,
    ) -> Any:
        """Predict the class of one input or of each input of a batch, without a radius and with far fewer samples.

        Clear inputs are decided after a few dozen votes (:mod:`smoothcert.stats.pairs`); ``Cohen(n)`` draws all n,
        as the papers do. Arguments and errors are those of :meth:`certify`; the procedure is that of the constructor,
        or ``Anytime(n_max=1_000)``. The label is ``ABSTAIN`` if nothing is decided.
        """
        procedure = procedure or self.procedure or Anytime(n_max=1_000)
        return answer_inputs(self, x, procedure, procedure.predict, seed, index, batch)

    def soft(self, x: Any, n: int = 32, *, seed: int | None = None, batch: bool | None = None) -> Tensor:
        """Return the mean softmax over noisy copies, with a gradient by ``x``, for attacks and explanations.

        It is the soft smoothed classifier of Salman et al. (2019), estimated from n copies, and proves nothing. Its
        noise depends on the seed, the place in the batch and n; no certificate or prediction uses the same.

        Args:
            x: One input or a batch, as for :meth:`certify`; the range is not checked, so that attacks may leave it.
            n: Noisy copies of each input, all in one forward pass.
            seed, batch: As for :meth:`certify`.

        Returns:
            Probabilities of shape (classes,), or (batch, classes) for a batch.

        Raises:
            UsageError: If the model cannot classify x, n is less than 1, or the noise is not additive.
        """
        if self.experts:
            raise UsageError("a router has no soft smoothed classifier; call soft of its experts.")
        sealed, seed = self.sealed(), fresh_seed() if seed is None else seed
        inputs = split_batch(sealed, x, batch, None)
        rows = stacked([x] if inputs is None else inputs, sealed.device)
        self._reference(sealed, checked_input(rows[0], None, sealed.device))  # a fixed function of one row
        shares = mean_softmax(sealed, rows, self.noise, n, seed)
        return shares[0] if inputs is None else shares

    def check(self, x: Any, procedure: Procedure | None = None) -> Tensor:
        """Check an input, and that a procedure's settings suit it; nothing is sampled.

        Returns:
            A copy of the input on the model's device, in at least single precision.

        Raises:
            UsageError: If it has the wrong dtype, is not finite, lies outside the declared range or the noise's grid,
                if the model cannot classify it, or if the procedure cannot certify it.
            RunError: If the memory belongs to another classifier.
        """
        procedure = None if procedure is None else self.sealed_procedure(procedure)
        tensor = self.checked(self.sealed(), x)
        if procedure is not None:
            for other, _ in self.sampled(procedure)[1:]:
                other.checked(other.sealed(), tensor)
            steps = procedure.certify(self.task(0, tensor, self.noise, seed=0))
            next(steps)  # a procedure checks its settings before it requests votes
            steps.close()
        return tensor

    def run(
        self,
        inputs: Iterable[tuple[int, Any]],
        procedure: Procedure,
        steps: Callable[[Task], Steps[Answer]],
        *,
        seed: int | None = None,
        count: int | None = None,
    ) -> Iterator[tuple[Job[Answer], Answer]]:
        """Certify or predict many inputs in shared batches.

        Args:
            inputs: Pairs (index, input).
            steps: ``procedure.certify`` or ``procedure.predict``.
            seed: The seed of the noise; a fresh one by default.
            count: The number of inputs, if known; decides how long runtimes are benchmarked.

        Yields:
            Each job and its answer, in the order decided; in the order of the inputs with a memory.

        Raises:
            UsageError: If an input is invalid, after the answers for the inputs before it.
        """
        return answers(self, inputs, procedure, steps, fresh_seed() if seed is None else seed, count)

    def routed(self, procedure: Procedure) -> Procedure:
        """Return the procedure that also certifies the choice of the expert, if there are experts."""
        return Routed(self.experts, procedure) if self.experts else procedure

    def for_workers(self) -> Smoothed:
        """Return a copy to send to other processes: without prepared runtimes and memory, which the driver applies."""
        other = copy.copy(self)
        other._forget()
        other.model, other._memory, other.procedure = self.sealed().model, None, None
        other._experts = tuple(each.for_workers() if isinstance(each, Smoothed) else each for each in self.experts)
        return other

    def frozen(self) -> Smoothed:
        """Return a copy that later changes of this one, of its model and of its experts' do not reach.

        A model that cannot be copied is shared; it must not change.
        """
        other = copy.copy(self)
        other.model, other._companions = self.sealed(), Companions(once=True)
        other._experts = tuple(
            each.frozen() if isinstance(each, Smoothed) else other._companions.seal(each) for each in self.experts
        )
        return other

    def task(self, index: int, x: Tensor, noise: Noise, seed: int, began: float | None = None) -> Task:
        """Return what a procedure knows of an input; ``began`` is the time of its request, now by default."""
        assert self.num_classes is not None
        return Task(noise, self.num_classes, x.numel(), seed, index, x, time.monotonic() if began is None else began)

    def sampled(self, procedure: Procedure) -> list[tuple[Runner, tuple[Statistic, ...]]]:
        """Return this classifier and the others that a procedure samples, and the statistics of each."""
        others = [(self._companions.runner(model, self), counted) for model, counted in procedure.others]
        return [(self, procedure.statistics), *others]

    def sealed_procedure(self, procedure: Procedure) -> Procedure:
        """Seal the models of a procedure that suits the memory."""
        if self.memory is not None:
            owner = {"model": self.sealed().sealed_identity, "noise": self.noise.config()}
            self.memory.bind(owner, self.noise.resolve_norm(procedure.norm))
        return self.routed(procedure).sealed(self._companions.seal)


def _check_choices(
    noise: Noise, experts: Sequence[Smoothed | Classifier], sigma: SigmaSolver | None, memory: Memory | None
) -> None:
    """Raise UsageError if experts, a chosen sigma and a memory do not go together."""
    if sigma is not None and not isinstance(noise, Gaussian):
        raise UsageError(f"sigma can be chosen for Gaussian noise only, not for {noise!r}.")
    if memory is not None and sigma is None:
        raise UsageError("a memory is for a sigma chosen for each input; give sigma=OptimizeSigma(), for example.")
    if len(experts) == 1:
        raise UsageError("a router needs at least two experts, got 1.")
    if any(isinstance(expert, Smoothed) and (expert.experts or expert.sigma) for expert in experts):
        raise UsageError("an expert must be a core or a smoothed classifier without experts or a chosen sigma.")
    if experts and sigma is not None:
        raise UsageError("sigma cannot be chosen for a selector, whose experts have fixed noises; leave out sigma.")

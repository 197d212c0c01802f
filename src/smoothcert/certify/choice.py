"""A certified choice between classifiers: what ACES and a router have in common.

A smoothed selector chooses which classifier answers. Within the selector's certified radius the choice is the same, and
within the chosen classifier's certified radius its class is: the answer holds within the smaller of the two. The
classifier that the smoothed selector truly chooses at an input is a fixed one, so two statements at α/2 each are
together wrong with probability at most α, although the votes find out which classifier it is, and although both may be
estimated from the same noisy copies.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from smoothcert.certify.base import Task
from smoothcert.classifiers.sealed import Sealed
from smoothcert.sampling import Classifier
from smoothcert.sampling.runtimes import check_copies
from smoothcert.types import Arithmetic, Certificate, Guarantee, Outcome, Routing, UsageError

_WORSE = (Outcome.REFUTED, Outcome.UNDECIDED, Outcome.CERTIFIED)


def composed(
    choice: Certificate,
    answer: Certificate,
    *,
    label: int,
    proved: bool,
    core: int | None = None,
    shared: bool = False,
) -> Certificate:
    """Combine the certificates of a choice and of the chosen classifier, each at α/2.

    Args:
        choice: The certificate of the selector.
        answer: The certificate of the chosen classifier.
        label: The class that is answered.
        proved: Whether both certificates support that class, so that it holds within a radius.
        core: The class of a core without a guarantee, if there is one.
        shared: Whether both were estimated from the same noisy copies.

    Raises:
        UsageError: If the certificates are in different norms, which cannot be compared.
    """
    if choice.norm is not answer.norm:
        raise UsageError(
            f"the selector is certified in {choice.norm.value} and the expert in {answer.norm.value}; choose one norm "
            "that the noises of both certify."
        )
    exact = choice.arithmetic is answer.arithmetic is Arithmetic.EXACT
    radius = min(choice.radius, answer.radius) if proved else 0.0
    decisions = {
        target: min(outcome, answer.decisions[target], key=_WORSE.index) for target, outcome in choice.decisions.items()
    }
    overall = Outcome.CERTIFIED if radius > 0 else Outcome.UNDECIDED
    return replace(
        answer,
        label=label,
        radius=radius,
        guarantee=Guarantee.ROUTED,
        arithmetic=Arithmetic.EXACT if exact else Arithmetic.FLOAT,
        offset=max(choice.offset, answer.offset),
        alpha=2 * choice.alpha,
        alpha_split={**choice.alpha_split, **answer.alpha_split},
        outcome=decisions[max(decisions)] if decisions else overall,
        decisions=decisions,
        routing=Routing(
            choice=choice.label,
            radius=choice.radius,
            p_lower=choice.p_lower,
            p_upper=choice.p_upper,
            n=choice.n,
            counts=choice.counts,
            n0=choice.n0,
            selection=choice.selection,
            core=core,
            shared=shared,
        ),
    )


def doubled(p_value: float) -> float:
    """Return the p-value of an answer from the larger one of choice and class, each tested at α/2."""
    return min(2 * p_value, 1.0)


def num_classes(core: Sealed, task: Task) -> int:
    """Verify that a core is a fixed function of the input, and return its number of classes."""
    assert task.x is not None
    x = task.x.to(core.device)
    return (core.known(x) or core.verify(check_copies(x, task.noise))).num_classes


def core_class(core: Classifier, task: Task) -> int:
    """Return the class that a core, an accurate classifier without a guarantee, gives the input without noise.

    Raises:
        UsageError: If the task holds no input, or the core is not a fixed function from an input to a logit for each
            class.
    """
    if task.x is None:
        raise UsageError("a core needs the input, which the task does not hold.")
    sealed = core if isinstance(core, Sealed) else Sealed(core)
    classes = num_classes(sealed, task)
    if classes != task.num_classes:
        raise UsageError(
            f"the core has {classes} classes, but the smoothed classifier has {task.num_classes}; use a core with the "
            "same classes."
        )
    with torch.inference_mode():
        return int(sealed(task.x.to(sealed.device)[None]).argmax())

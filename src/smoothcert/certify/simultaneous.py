"""Statements about a whole dataset that hold together: each input gets an equal share of the error probability."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from smoothcert.certify.base import Procedure
from smoothcert.types import UsageError

P = TypeVar("P", bound=Procedure)


def simultaneous(procedure: P, count: int) -> P:
    """A procedure that certifies each of ``count`` inputs at alpha/count, so that all statements hold at alpha.

    By the union bound, no statement about any of the inputs is false with probability at least 1 - alpha, where alpha
    is that of the procedure given. Unlike single statements, they may be looked at and selected from afterwards.

    Args:
        procedure: How to certify; its alpha is for all inputs together.
        count: The number of inputs that are certified, those of all shards included.

    Returns:
        The same procedure with the share of one input as its alpha.

    Raises:
        UsageError: If there is no input, or the share is too small to be a probability.

    Example:
        >>> from smoothcert.certify import Cohen
        >>> simultaneous(Cohen(alpha=0.001), 500).alpha
        2e-06
    """
    if count < 1:
        raise UsageError(f"statements about {count} inputs cannot hold together; select at least one input.")
    share = procedure.alpha / count
    # Rounded down, so that the shares do not add up to more than alpha, neither as floats nor as they are printed.
    while Fraction(share) * count > Fraction(procedure.alpha) or Fraction(repr(share)) * count > Fraction(
        repr(procedure.alpha)
    ):
        share = math.nextafter(share, 0.0)
    if not share > 0:
        raise UsageError(f"alpha = {procedure.alpha:g} is too small to be shared by {count:,} inputs; raise alpha.")
    return replace(procedure, alpha=share)

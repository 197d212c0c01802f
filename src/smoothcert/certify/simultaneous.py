"""Statements that hold for all inputs together: each input gets an equal share of the error probability."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from smoothcert.certify.base import Procedure
from smoothcert.types import UsageError

P = TypeVar("P", bound=Procedure)


def simultaneous(procedure: P, count: int) -> P:
    """Return a procedure that certifies each of ``count`` inputs at alpha/count, so that all statements hold at alpha.

    By the union bound, all statements are true with probability at least 1 - alpha, where alpha is that of the given
    procedure. Unlike single statements, they may be selected from after looking at them. The inputs of all shards
    count.

    Raises:
        UsageError: If there is no input, or the share of one is too small to be a probability.

    Example:
        >>> from smoothcert.certify import Cohen
        >>> simultaneous(Cohen(alpha=0.001), 500).alpha
        2e-06
    """
    if count < 1:
        raise UsageError(f"simultaneous statements need inputs, got {count}; select at least one input.")
    alpha = procedure.alpha
    share = alpha / count
    # Rounded down, so that the shares do not add up to more than alpha, neither as floats nor as they are printed.
    while Fraction(share) * count > Fraction(alpha) or Fraction(str(share)) * count > Fraction(str(alpha)):
        share = math.nextafter(share, 0.0)
    if not share > 0:
        raise UsageError(f"alpha = {alpha:g} is too small to be shared by {count:,} inputs; raise alpha.")
    return replace(procedure, alpha=share)

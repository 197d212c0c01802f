"""What a model said of fixed inputs, kept with each session of a run: it tells models apart that hashes cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smoothcert.types import RunError


def refuse_other_answers(folder: Path, there: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]]) -> None:
    """Refuse sessions whose model gave other logits for the same fixed inputs, beyond rounding.

    Args:
        folder: The run folder, for the error.
        there: Its sessions; those of earlier versions have no ``probe`` (see ``Sealed.probe``).
        here: The sessions to be added.

    Raises:
        RunError: If two sessions differ so.
    """
    try:
        probes = [session["probe"] for session in (*there, *here) if isinstance(session.get("probe"), list)]
        logits = [np.asarray(probe, dtype=np.float64)[:, 1:] for probe in probes]  # the top class may change in a tie
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise RunError(f"{folder / 'run.json'} is damaged (a probe is not a table of numbers); restore it.") from error
    first = logits[0] if logits else np.empty((0, 2))
    allowed = 1e-2 * float(np.abs(first).max(initial=0.0))  # as far apart as runtimes and devices may be
    if not all(each.shape == first.shape and np.allclose(each, first, rtol=0, atol=allowed) for each in logits):
        raise RunError(
            f"the model gives other logits for the same inputs than when {folder} was begun, though its weights and "
            "code are the same; find out what else it depends on, or choose another run folder."
        )

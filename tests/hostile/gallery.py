"""The gallery: every hostile but ordinary classifier, by name."""

from __future__ import annotations

from hostile.entries import batches, modes, states, tensors, wrappers
from hostile.entry import ENTRIES, Entry

PARTS = (modes, batches, states, tensors, wrappers)

GALLERY: tuple[Entry, ...] = tuple(ENTRIES.values())

__all__ = ["ENTRIES", "GALLERY", "PARTS"]

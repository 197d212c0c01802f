"""API keys, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterable
from pathlib import Path

from smoothcert.types import UsageError

VARIABLE = "SMOOTHCERT_API_KEYS"
_SHORTEST = 16


class Keys:
    """The keys that may call a service; none means that anybody may.

    Args:
        keys: The keys, which are kept as hashes.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def allow(self, given: str) -> bool:
        """Return whether a key is among them; the time does not depend on how much of a key agrees, or which."""
        digest, found = _digest(given), False
        for each in self._digests:
            found |= hmac.compare_digest(digest, each)
        return found


def read_keys(file: Path | None) -> Keys:
    """Read the keys in a file, one in a line, and in the environment, separated by commas or white space.

    Raises:
        UsageError: If the file cannot be read or holds no key, or a key is short.
    """
    found = [each for each in re.split(r"[,\s]+", os.environ.get(VARIABLE, "")) if each]
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"the API keys in {file} cannot be read; give a text file with a key in each line."
            ) from error
        there = [line for line in lines if line and not line.startswith("#")]
        if not there:
            raise UsageError(f"{file} holds no API key; write one in each line.")
        found += there
    if any(len(key) < _SHORTEST for key in found):
        raise UsageError(f"an API key has fewer than {_SHORTEST} characters; use `openssl rand -hex 24`, for example.")
    return Keys(found)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

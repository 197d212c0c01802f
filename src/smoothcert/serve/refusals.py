"""Errors that a service answers with."""

from __future__ import annotations

from smoothcert.types import SmoothcertError


class Refused(SmoothcertError):
    """A request that is not answered: an HTTP status, and one sentence.

    Attributes:
        status: The HTTP status.
        retry_after: Whole seconds after which the same request may succeed.
    """

    def __init__(self, status: int, sentence: str, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after = status, retry_after

"""Certification as work for the processes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from smoothcert.certify.base import Procedure
from smoothcert.certify.smoothed import Smoothed
from smoothcert.noise import Noise
from smoothcert.types import Certificate


@dataclass(frozen=True)
class Decided:
    """A certificate and what it took.

    Attributes:
        certificate: The certificate.
        seconds: The time spent on it.
        consensus: The share of its copies that the first members of a consensus decided; None without one.
        noise: The noise, where it was chosen for the input alone.
    """

    certificate: Certificate
    seconds: float
    consensus: float | None
    noise: Noise | None


@dataclass
class Certifying:
    """What each worker does: certify the inputs it is leased, in batches that they share.

    Args:
        smoothed: The smoothed classifier (see ``Smoothed.for_workers``).
        procedure: How to certify.
        probe: One of the inputs.
        seed: The seed of the noise.
        count: About how many inputs a worker gets; decides how much measuring pays.
    """

    smoothed: Smoothed
    procedure: Procedure
    probe: Tensor
    seed: int
    count: int

    def begin(self, like: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Choose how to run the model, or do as another worker did; the settings of the runtime."""
        samples = self.count * self.procedure.expected_samples
        return self.smoothed.prepare(self.probe, samples=samples, like=like).settings()

    def answers(self, inputs: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Decided]]:
        """Certify inputs, each by its index."""
        procedure = self.procedure
        for job, certificate in self.smoothed.run(
            inputs, procedure, procedure.certify, seed=self.seed, count=self.count
        ):
            yield job.index, Decided(certificate, job.seconds, job.consensus, job.noise)

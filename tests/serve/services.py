"""Services of small classifiers whose votes are known."""

from __future__ import annotations

import time

import torch
from torch import nn

from smoothcert import Anytime, Gaussian, Smoothed
from smoothcert.serve.service import Served, Service
from smoothcert.serve.settings import ServiceSettings

SHAPE = (1, 4, 4)


class Bright(nn.Module):
    """Class 1 where the mean exceeds ½: for a mean m the radius is |m − ½|·√16 in ℓ2."""

    def forward(self, x):
        score = x.flatten(1).mean(dim=1) - 0.5
        return torch.stack([-score, score], dim=1)


class Columns(nn.Module):
    """Logits that are small whole numbers, so no batch shape can change a vote."""

    def forward(self, x):
        return (x > 0.5).float().sum(dim=(1, 2))


def served(model=None, procedure=None, *, name="bright", shape=SHAPE, noise=None, **options) -> Served:
    smoothed = Smoothed(
        model or Bright(), noise or Gaussian(0.25, grid=255), **{"runtime": "eager", "batch_size": 100, **options}
    )
    names = ("dark", "bright") if model is None else None
    return Served(name, smoothed, procedure or Anytime(0.1, n_max=5_000, deadline=5.0), shape, names)


def make_service(*all_served, recorder=None, **limits) -> Service:
    service = Service(all_served or [served()], ServiceSettings(**limits), recorder)
    if recorder is not None:
        recorder.open(service.served)
    return service


def wait_until_ready(client) -> None:
    until = time.monotonic() + 60
    while client.get("/readyz").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.02)


def grey(value: float) -> list:
    """An input of the nearest grey of an 8-bit image, or of a value that is none."""
    return torch.full(SHAPE, round(value * 255) / 255 if 0 <= value <= 1 else value).tolist()

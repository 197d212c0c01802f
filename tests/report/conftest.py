"""Real runs over the bundled digits, for the tests of the report page: quick, as the model is linear."""

from __future__ import annotations

import pytest
import torch

from smoothcert import Cohen, Gaussian, Smoothed, data
from smoothcert.certify import Aces
from smoothcert.store import certify_dataset

HOSTILE = "<img src=x onerror=alert(1)>"
"""A name of a run that must show as text."""

EVERY = 4


@pytest.fixture(scope="session")
def digits_runs(tmp_path_factory):
    """A folder of three runs over 125 digits: two noise levels, the second under a hostile name, and ACES."""
    x, y = data.load("digits", split="train").arrays()
    inputs = torch.cat([x.flatten(1), torch.ones(len(x), 1)], dim=1)
    weights = torch.linalg.lstsq(inputs.T @ inputs + torch.eye(65), inputs.T @ torch.eye(10)[y]).solution
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with torch.no_grad():
        model[1].weight.copy_(8 * weights[:64].T)
        model[1].bias.copy_(8 * weights[64])
    folder = tmp_path_factory.mktemp("digits-runs")
    digits = data.load("digits", split="test")
    procedures = {
        "small": (0.1, Cohen(n=200)),
        HOSTILE: (0.3, Cohen(n=200)),
        "aces": (0.3, Aces(core=model, n=200, theta=0.5)),
    }
    for name, (sigma, procedure) in procedures.items():
        smoothed = Smoothed(model, Gaussian(sigma), runtime="eager")
        certify_dataset(smoothed, digits, procedure, run=folder / name, every=EVERY, progress=False)
    return folder

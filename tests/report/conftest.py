"""Real runs over the bundled digits, for the tests of the report page: quick, as the model is linear."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch

from smoothcert import Cohen, Gaussian, Smoothed, data
from smoothcert.certify import Aces
from smoothcert.evaluate import certify_dataset
from smoothcert.store import load_run, write_run

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
        certify_dataset(smoothed, digits, procedure, run=folder / name, every=EVERY, progress=False, seed=0)
    return folder


OWNED = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">`${1}`\u2028{{data}}"
)
"""A text that runs code wherever it is read as HTML or as a script, and would fill a place of the template."""

OWNED_NAME = OWNED.replace("/", "")
"""The same for names of files, with other attributes that run code."""


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory, digits_runs):
    """A run and a log in whose files every text is hostile, and a dataset with such classes."""
    folder = tmp_path_factory.mktemp("hostile")
    run = load_run(digits_runs / "small")
    table = run.table()
    for column in ("runtime", "model", "outcome"):
        values = pa.array([OWNED] * len(table))
        table = table.set_column(table.column_names.index(column), column, values)
    config = {
        **run.config,
        "procedure": {"name": OWNED, OWNED: OWNED},
        "noise": {"name": OWNED, "sigma": 0.1, OWNED: OWNED},
        "model": {"class": OWNED, "path": OWNED},
        "data": {**run.config["data"], "name": OWNED, "split": OWNED},
        OWNED: [OWNED, {OWNED: OWNED}],
    }
    training = [{"settings": {OWNED: OWNED}, "seed": 1, "recipe": OWNED}]
    session = {"note": OWNED, "source": {"path": OWNED, "training": training}, OWNED: OWNED}
    write_run(folder / f"run {OWNED_NAME}", table, config, session)
    lines = [f"idx\tlabel\tpredict\tradius\t{OWNED}"]
    lines += [f"{row['index']}\t{row['label']}\t{row['predict']}\t{row['radius']}\t{OWNED}" for row in run.rows()]
    (folder / f"log {OWNED_NAME}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    digits = data.load("digits", split="test")
    images, labels = digits.arrays()
    names = [f"{OWNED} {label}" for label in range(10)]
    dataset = data.ArrayDataset(images.numpy(), labels.numpy(), name=OWNED, split=OWNED, class_names=names, scale=1.0)
    return folder, dataset

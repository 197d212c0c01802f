"""Resuming a run: one of an earlier version with a warning, one of another model not at all."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import nn

from smoothcert import Aces, Cohen, Gaussian, Smoothed, certify_dataset, load_run
from smoothcert.store import Run, merge_runs
from smoothcert.store.parts import parts_of, read_part, write_part
from smoothcert.store.run_json import config_digest, write_info
from smoothcert.types import RunError

DATA = [(torch.full((2, 4), i / 20), i % 4) for i in range(20)]
QUICK = Cohen(n=200)
NEW_COLUMNS = ["seed", "arithmetic", "offset", "runtime", "model", "input", "p_upper"]


def linear(seed: int = 0, classes: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, classes))


def certify(model, path, procedure=QUICK, **options) -> Run:
    smoothed = model if isinstance(model, Smoothed) else Smoothed(model, Gaussian(0.5))
    return certify_dataset(smoothed, DATA, procedure, run=path, progress=False, **options)


def without_code(value: Any) -> Any:
    """A configuration as it was before the code of models was in it."""
    if isinstance(value, dict):
        return {key: without_code(each) for key, each in value.items() if key != "code"}
    return [without_code(each) for each in value] if isinstance(value, list) else value


def make_earlier(run: Run, rows: int = 9) -> dict:
    """Turn a run into what the version before would have left after some rows; gives its configuration."""
    config = without_code(run.config)
    del config["stream"]["dtype"]
    (part,) = parts_of(run.path)
    write_part(part, read_part(part).drop_columns(NEW_COLUMNS)[:rows], config_digest(config))
    sessions = [{key: each for key, each in session.items() if key != "probe"} for session in run.info["sessions"]]
    write_info(run.path, config, sessions)
    return config


def votes(run: Run) -> list[tuple]:
    return [(row["index"], row["predict"], row["radius"], row["counts"], row["selection"]) for row in run.rows()]


KINDS: dict[str, tuple[Callable[[], Any], Any]] = {
    "one model": (linear, QUICK),
    "a core": (linear, Aces(core=linear(5), n=200)),
    "a router": (
        lambda: Smoothed(linear(9, 2), Gaussian(0.5), experts=[Smoothed(linear(i), Gaussian(0.5)) for i in (1, 2)]),
        QUICK,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_an_earlier_version_is_read_and_continued(tmp_path, kind):
    make, procedure = KINDS[kind]
    whole = certify(make(), tmp_path / "whole", procedure, seed=0)
    run = certify(make(), tmp_path / "run", procedure, seed=0)
    config = make_earlier(run)
    earlier = load_run(run.path)
    assert earlier.config == config
    assert votes(earlier) == votes(whole)[:9]
    assert all(row.get(name) is None for row in earlier.rows() for name in NEW_COLUMNS)  # unknown, not assumed
    with pytest.warns(UserWarning, match="was started by an earlier version, which did not record the code"):
        after = certify(make(), run.path, procedure)  # the run tells its seed
    assert after.config == config
    assert votes(after) == votes(whole)
    assert [row["seed"] for row in after.rows()] == [None] * 9 + [0] * 11
    assert [row["model"] for row in after.rows()] == [None] * 9 + [row["model"] for row in whole.rows()[9:]]
    assert ["probe" in session for session in after.info["sessions"]] == [False, True]
    with pytest.warns(UserWarning, match="earlier version"):
        assert votes(certify(make(), run.path, procedure, seed=0)) == votes(whole)  # finds it finished


def test_an_earlier_run_of_other_settings_or_weights_is_refused(tmp_path):
    run = certify(linear(), tmp_path / "run", seed=0)
    make_earlier(run)
    for model, options, match in (
        (linear(1), {}, r"model\.sha256 is"),
        (linear(), {"seed": 1}, "seed is 0 there and 1 here"),
        (Smoothed(linear(), Gaussian(0.25)), {}, r"noise\.sigma is"),
    ):
        with pytest.warns(UserWarning, match="earlier version"), pytest.raises(RunError, match=match):
            certify(model, run.path, **options)


def test_earlier_shards_are_united_with_each_other(tmp_path):
    whole = certify(linear(), tmp_path / "whole", seed=0)
    shards = [certify(linear(), tmp_path / f"{i}", seed=0, shard=(i, 2)) for i in (1, 2)]
    for shard in shards:
        make_earlier(shard, rows=10)
    united = merge_runs([shard.path for shard in shards], tmp_path / "united")
    assert votes(united) == votes(whole)
    assert united.config["seed"] == 0
    assert "code" not in united.config["model"]


class Scaled(nn.Module):
    """A model with a plain attribute that decides its answers."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.inner = linear()
        self.scale = scale

    def forward(self, x):
        return self.inner(x * self.scale)


def scaled_by_other_code() -> nn.Module:
    model = Scaled()

    class Other(Scaled):
        def forward(self, x):
            return self.inner(1 - x)

    Other.__name__, Other.__qualname__ = Scaled.__name__, Scaled.__qualname__
    model.__class__ = Other
    return model


def first_pixels(scale: float) -> Callable:
    return lambda x: x.flatten(1)[:, :4] * scale


@pytest.mark.parametrize(
    ("model", "other"),
    [
        (Scaled(), Scaled(1.01)),
        (Scaled(), scaled_by_other_code()),
        (lambda x: x.flatten(1)[:, :4], lambda x: x.flatten(1)[:, 1:5]),
        (first_pixels(1.0), first_pixels(-1.0)),
    ],
    ids=["attribute", "forward", "lambda", "closure"],
)
def test_another_model_does_not_continue_a_run(tmp_path, model, other):
    run = certify(model, tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        certify(model, run.path)  # the same one does
    with pytest.raises(RunError, match=r"another configuration \(model\.code is \w+ there and \w+ here\)"):
        certify(other, run.path)


def test_a_model_that_answers_otherwise_does_not_continue_a_run(tmp_path):
    """What hashes cannot see shows in the answers to fixed inputs."""
    run = certify(linear(), tmp_path / "run")
    (session,) = run.info["sessions"]
    moved = [[top, value + 1, mean] for top, value, mean in session["probe"]]
    write_info(run.path, run.config, [{**session, "probe": moved}])
    with pytest.raises(RunError, match=r"returns other logits for the same inputs than when .* was started"):
        certify(linear(), run.path)
    for probe in ("a table", [[1.0], [2.0]], [["x", "y", "z"]]):
        write_info(run.path, run.config, [{**session, "probe": [probe]}])
        with pytest.raises(RunError, match=r"run\.json is damaged|returns other logits"):
            certify(linear(), run.path)


def test_parts_keep_their_types(tmp_path):
    run = certify(linear(), tmp_path / "run", seed=0)
    make_earlier(run)
    with pytest.warns(UserWarning, match="earlier version"):
        table = certify(linear(), run.path).table()
    assert table.schema.field("seed").type == pa.int64()
    assert table.schema.field("model").type == pa.string()

"""Seeds of the noise: fresh unless given, kept with every certificate, and taken from the run when it goes on."""

from __future__ import annotations

import json

import pytest
import torch

from smoothcert import Anytime, Cohen, Gaussian, Smoothed, certify_dataset, load_run
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.store import merge_runs
from smoothcert.types import RunError

DATA = [(torch.full((2, 4), i / 20), i % 4) for i in range(20)]
QUICK = Cohen(n=200)
X = DATA[7][0]


@pytest.fixture
def smoothed():
    torch.manual_seed(0)
    return Smoothed(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 4)), Gaussian(0.5), batch_size=100)


def certify(smoothed, path, dataset=DATA, **options):
    return certify_dataset(smoothed, dataset, QUICK, run=path, progress=False, **options)


def without_time(run) -> list[dict]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.rows()]


class Ending(list):
    """Data that ends early: only some of it can be certified before the run is interrupted."""

    name = "list"
    known = (0, 10, 19)  # looked at first, to know the data by

    def __getitem__(self, index):
        if index >= 12 and index not in self.known:
            raise KeyboardInterrupt
        return super().__getitem__(index)


def test_a_certificate_tells_the_fresh_seed_that_repeats_it(smoothed):
    first, second = (smoothed.certify(X, QUICK) for _ in range(2))
    assert first.seed != second.seed
    assert first.counts != second.counts
    assert first.index == second.index  # which follows from the input
    assert smoothed.certify(X, QUICK, seed=first.seed) == first
    assert smoothed.certify(X, QUICK, seed=second.seed, index=second.index) == second
    prediction = smoothed.predict(X)
    assert smoothed.predict(X, seed=prediction.seed) == prediction


@pytest.mark.parametrize("procedure", [QUICK, Anytime(radius=0.2, n_max=5000)], ids=lambda p: p.name)
def test_seed_and_index_repeat_a_certificate_bit_for_bit(smoothed, procedure):
    torch.manual_seed(0)  # another object, of the same weights
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 4))
    other = Smoothed(model, Gaussian(0.5), batch_size=33)
    first = smoothed.certify(X, procedure, seed=5, index=3)
    assert other.certify(X, procedure, seed=5, index=3) == first
    assert (first.seed, first.index) == (5, 3)
    assert {name: first.__dict__[name] for name in ("arithmetic", "offset", "runtime")} == {
        "arithmetic": "float",
        "offset": 0.0,
        "runtime": "eager",
    }


def test_inputs_without_an_index_never_share_noise(smoothed, monkeypatch):
    drawn: dict[int, set[bytes]] = {}
    fill = NoisyCopies.fill

    def watched(self, batch, x, noise, *, seed, index, stage, start):
        fill(self, batch, x, noise, seed=seed, index=index, stage=stage, start=start)
        rows = ((batch - x) / 0.5).double().round(decimals=3)
        drawn.setdefault(index, set()).update(row.numpy().tobytes() for row in rows)

    monkeypatch.setattr(NoisyCopies, "fill", watched)
    inputs = [x for x, _ in DATA[:5]]
    inputs += [inputs[1].double(), inputs[1].reshape(4, 2), inputs[1] + 1e-6]
    indices = [smoothed.certify(x, QUICK, seed=0).index for x in inputs]
    assert len(set(indices)) == len(inputs)
    noises = [drawn[index] for index in indices]
    assert all(len(each) >= 300 for each in noises)
    assert len(set.union(*noises)) == sum(map(len, noises))
    assert smoothed.certify(inputs[2].clone(), QUICK, seed=0).index == indices[2]


def test_a_run_draws_a_seed_and_keeps_it_everywhere(smoothed, tmp_path):
    first, second = (certify(smoothed, tmp_path / name) for name in ("first", "second"))
    seed = first.config["seed"]
    assert seed != second.config["seed"]
    assert json.loads((first.path / "run.json").read_text())["config"]["seed"] == seed
    assert {row["seed"] for row in first.rows()} == {seed}
    assert [row["counts"] for row in first.rows()] != [row["counts"] for row in second.rows()]
    assert without_time(certify(smoothed, tmp_path / "again", seed=seed)) == without_time(first)
    for row in first.rows()[:3]:
        alone = smoothed.certify(DATA[row["index"]][0], QUICK, seed=row["seed"], index=row["index"])
        assert list(alone.counts) == row["counts"]
        assert (alone.input, alone.model, alone.runtime) == (row["input"], row["model"], row["runtime"])


def test_a_run_goes_on_with_its_seed(smoothed, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        certify(smoothed, tmp_path / "broken", Ending(DATA))
    before = load_run(tmp_path / "broken")
    assert 0 < len(before.rows()) < 20
    with pytest.raises(RunError, match=f"seed is {before.config['seed']} there and 1 here"):
        certify(smoothed, tmp_path / "broken", seed=1)
    after = certify(smoothed, tmp_path / "broken")
    assert after.config == before.config
    assert without_time(after) == without_time(certify(smoothed, tmp_path / "whole", seed=before.config["seed"]))


def test_rows_tell_the_seed_where_run_json_was_lost(smoothed, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        certify(smoothed, tmp_path / "broken", Ending(DATA))
    seed = load_run(tmp_path / "broken").config["seed"]
    (tmp_path / "broken" / "run.json").unlink()
    assert certify(smoothed, tmp_path / "broken").config["seed"] == seed
    (tmp_path / "broken" / "run.json").unlink()
    after = certify(smoothed, tmp_path / "broken")  # now of a part
    assert {row["seed"] for row in after.rows()} == {seed}
    assert len(after.rows()) == 20


def test_shards_that_drew_their_own_seeds_are_united(smoothed, tmp_path):
    shards = [certify(smoothed, tmp_path / f"{i}", shard=(i, 2)) for i in (1, 2)]
    seeds = [shard.config["seed"] for shard in shards]
    assert seeds[0] != seeds[1]
    united = merge_runs([shard.path for shard in shards], tmp_path / "united")
    assert united.config["seed"] is None
    assert [row["seed"] for row in united.rows()] == seeds * 10
    rows = {row["index"]: row for shard in shards for row in without_time(shard)}
    assert without_time(united) == [rows[index] for index in range(20)]
    assert without_time(certify(smoothed, tmp_path / "united")) == without_time(united)  # finds it finished


def test_a_run_without_rows_leaves_nothing_and_may_be_replaced(smoothed, tmp_path):
    class Ended(list):
        there = False

        def __getitem__(self, index):
            self.there |= (tmp_path / "run" / "run.json").exists()
            if self.there:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    with pytest.raises(KeyboardInterrupt):
        certify(smoothed, tmp_path / "run", Ended(DATA), seed=3)
    assert not (tmp_path / "run").exists()
    run = certify(smoothed, tmp_path / "run", seed=3)
    for part in run.path.glob("part-*"):  # as if it had been killed before its first row
        part.unlink()
    other = certify(Smoothed(smoothed.model, Gaussian(0.25)), run.path, seed=4)
    assert (other.config["seed"], len(other.rows()), len(other.info["sessions"])) == (4, 20, 1)

"""Certifying over a Ray cluster: the same rows as in one process, whatever happens to workers."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from smoothcert import (
    Aces,
    Anytime,
    Cohen,
    Consensus,
    Ensemble,
    Gaussian,
    Memory,
    Smoothed,
    certify_dataset,
    load_run,
    models,
)
from smoothcert.evaluate.cluster import Cluster
from smoothcert.evaluate.cluster import pool as module
from smoothcert.sampling import runtimes
from smoothcert.sampling.sigma import OptimizeSigma
from smoothcert.training.run import soft_labels
from smoothcert.types import RunError, SmoothcertError, UsageError

ray = pytest.importorskip("ray")

DATA = [(torch.full((2, 4), i / 24), i % 4) for i in range(24)]
TWO = Cluster(workers=2)


@pytest.fixture(scope="module", autouse=True)
def connected():
    """One cluster for all tests of this file; what is defined here travels as code."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Cluster(workers=3).connected():
        yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def linear(seed: int = 0, classes: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, classes))


def certify(path, smoothed=None, procedure=None, dataset=DATA, **options):
    smoothed = smoothed or Smoothed(linear(), Gaussian(0.5), batch_size=100)
    return certify_dataset(smoothed, dataset, procedure or Cohen(n=500), run=path, progress=False, seed=0, **options)


def without_time(path, *others: str) -> list[dict]:
    """Rows but for what depends on the company of an input: time, and copies drawn ahead for it."""
    left_out = ("seconds", "consensus", *others)
    return [{k: v for k, v in row.items() if k not in left_out} for row in load_run(path).rows()]


OPTIONS = {"batch_size": 100}
CASES = {
    "one model": (lambda: Smoothed(linear(), Gaussian(0.5), **OPTIONS), Aces(core=linear(5), n=500)),
    "a consensus": (
        lambda: Smoothed(Consensus([linear(i) for i in range(4)], 2, margin=0.1), Gaussian(0.5), **OPTIONS),
        Anytime(radius=(0.1, 0.3), n_max=2000),
    ),
    "sigma for each input": (
        lambda: Smoothed(linear(), Gaussian(0.5), sigma=OptimizeSigma(steps=3), memory=Memory(), **OPTIONS),
        Cohen(n=500),
    ),
    "a router": (
        lambda: Smoothed(
            linear(9, 2),
            Gaussian(0.5),
            experts=[Smoothed(linear(i), Gaussian(0.3 + i / 10)) for i in (1, 2)],
            **OPTIONS,
        ),
        Cohen(n=500),
    ),
    "a function": (lambda: Smoothed(lambda x: x.flatten(1)[:, :4], Gaussian(0.5), **OPTIONS), Cohen(n=500)),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_one_process(tmp_path, case):
    make, procedure = CASES[case]
    here = certify(tmp_path / "here", make(), procedure)
    there = certify(tmp_path / "there", make(), procedure, cluster=TWO)
    assert without_time(there.path) == without_time(here.path)
    assert there.config == here.config
    assert there.info["sessions"][0]["cluster"]["workers"] == 2


def test_members_spread_over_workers(tmp_path):
    smoothed = Smoothed(Ensemble([linear(i) for i in range(3)], "hard"), Gaussian(0.5), batch_size=100)
    certify(tmp_path / "here", smoothed)
    there = certify(tmp_path / "there", smoothed, cluster=Cluster(workers=2, spread=True))
    assert without_time(tmp_path / "there", "runtime") == without_time(tmp_path / "here", "runtime")
    assert {row["runtime"] for row in there.rows()} == {"spread"}


def test_a_run_moves_between_one_process_and_a_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(runtimes, "MEASURE_SECONDS", 0.0)
    smoothed = Smoothed(Ensemble([linear(i) for i in range(3)]), Gaussian(0.5))
    big = Cohen(n=3000)  # the runtime is measured, and taken over
    certify(tmp_path / "whole", smoothed, big)
    clusters = [None, TWO, Cluster(workers=2, spread=True), None]
    for cluster, stop in zip(clusters, (6, 12, 18, 24), strict=True):

        class Ending(list):
            name = "list"

            def __getitem__(self, index, stop=stop):
                if index >= stop and index not in (12, 23):  # which are looked at first, to know the data by
                    raise KeyboardInterrupt
                return super().__getitem__(index)

        ends = pytest.raises(KeyboardInterrupt) if stop < 24 else nullcontext()
        with ends:
            certify(tmp_path / "moved", smoothed, big, dataset=Ending(DATA), cluster=cluster)
    assert without_time(tmp_path / "moved", "runtime") == without_time(tmp_path / "whole", "runtime")
    assert len(load_run(tmp_path / "moved").info["sessions"]) == 4


class Mortal(nn.Module):
    """Kills the process it runs in, other than its first one, as often as there are files to take away.

    It survives the checks at the start, which see the first input: all zeros.
    """

    def __init__(self, model: nn.Module, lives) -> None:
        super().__init__()
        self.model, self.lives, self.home = model, str(lives), os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.home and len(x) > 50 and x.mean() > 0.2:
            for life in sorted(os.listdir(self.lives)):
                try:
                    os.remove(os.path.join(self.lives, life))
                except FileNotFoundError:  # another worker took it
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
        return self.model(x)

    def extra_repr(self) -> str:
        return ""


def mortal(tmp_path, lives: int, *, ensemble: bool = False) -> Smoothed:
    (tmp_path / "lives").mkdir()
    for life in range(lives):
        (tmp_path / "lives" / f"{life}").touch()
    model = Mortal(linear(), tmp_path / "lives")
    members = [model, linear(1)]
    return Smoothed(Ensemble(members) if ensemble else model, Gaussian(0.5), batch_size=100)


@pytest.mark.parametrize("spread", [False, True])
def test_the_inputs_of_a_lost_worker_go_to_others(tmp_path, spread):
    smoothed = mortal(tmp_path, 2, ensemble=spread)
    with pytest.warns(UserWarning, match="a worker was lost"):
        certify(tmp_path / "there", smoothed, cluster=Cluster(workers=2, spread=spread))
    assert os.listdir(tmp_path / "lives") == []
    certify(tmp_path / "here", smoothed)
    assert without_time(tmp_path / "there", "runtime") == without_time(tmp_path / "here", "runtime")


@pytest.mark.filterwarnings("ignore:a worker was lost")
def test_an_input_that_kills_every_worker_ends_the_run_and_the_rest_stays(tmp_path):
    smoothed = mortal(tmp_path, 1000)
    with pytest.raises(SmoothcertError, match=r"3 workers were lost with input \d+ .*check their memory"):
        certify(tmp_path / "run", smoothed, cluster=TWO)
    for life in (tmp_path / "lives").iterdir():
        life.unlink(missing_ok=True)  # a worker may have taken it
    assert len(certify(tmp_path / "run", smoothed, cluster=TWO).rows()) == 24


def test_what_an_input_lacks_is_said_as_in_one_process(tmp_path):
    data = [*DATA[:20], (torch.full((2, 4), torch.nan), 0), *DATA[21:]]
    said = []
    for name, cluster in (("here", None), ("there", TWO)):
        with pytest.raises(UsageError) as error:
            certify(tmp_path / name, dataset=data, cluster=cluster)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert said[0].startswith("input 20: ")


def test_an_error_of_the_model_is_one_sentence(tmp_path):
    home = os.getpid()

    def fails(x):
        if (
            os.getpid() != home and len(x) > 50 and x.mean() > 0.2
        ):  # not yet in the checks, which see the first input: all zeros
            raise KeyError("no such layer")
        return x.flatten(1)[:, :4]

    with pytest.raises(SmoothcertError, match=r"a worker failed \(KeyError: 'no such layer'\); the same command with"):
        certify(tmp_path / "run", Smoothed(fails, Gaussian(0.5), batch_size=100), cluster=TWO)


def test_workers_of_another_version_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "versions", lambda: {"smoothcert": "9.9", "torch": torch.__version__, "numpy": "1"})
    with pytest.raises(SmoothcertError, match=r"a worker has smoothcert .*, not 9\.9 and numpy .*; install the same"):
        certify(tmp_path / "run", cluster=TWO)


def test_only_ensembles_are_spread(tmp_path):
    consensus = Smoothed(Consensus([linear(i) for i in range(3)], 2), Gaussian(0.5))
    for smoothed in (None, consensus):
        with pytest.raises(UsageError, match=r"only the members of an ensemble can be spread .*without a consensus"):
            certify(tmp_path / "run", smoothed, cluster=Cluster(workers=2, spread=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"workers": 0}, "at least one worker, got 0"),
        ({"cpus": 0}, "at least one CPU, got 0"),
        ({"gpus": -1}, "a fraction of one, or a whole number of them; got -1"),
        ({"gpus": 1.5}, "got 1.5"),
    ],
)
def test_clusters_that_cannot_be(settings, match):
    with pytest.raises(UsageError, match=match):
        Cluster(**settings)


def test_noise_of_gpus_is_another(tmp_path):
    certify(tmp_path / "run", cluster=TWO)
    with pytest.raises(RunError, match=r"stream\.device is cpu there and cuda here"):
        certify(tmp_path / "run", cluster=Cluster(workers=1, gpus=0.5))


def test_soft_labels_are_those_of_one_process(tmp_path):
    torch.manual_seed(0)
    model, x = models.build("digits-cnn").eval(), torch.rand(230, 1, 8, 8)
    options = {"n": 100, "num_classes": 10, "progress": False}
    here = soft_labels(model, x, Gaussian(0.25), folder=tmp_path / "here", **options)
    there = soft_labels(model, x, Gaussian(0.25), folder=tmp_path / "there", cluster=TWO, **options)
    assert torch.equal(here, there)
    assert load_run(tmp_path / "there").info["sessions"][0]["cluster"]["workers"] == 2


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return x.flatten(1)[:, :4]


def test_workers_that_join_late_work_too(tmp_path, monkeypatch):
    capacity = iter([1, 1, 2])
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(Cluster, "capacity", lambda self, ray: next(capacity, 3))
    sizes = []
    grow = module.WorkerPool._grow

    def watched(team, left):
        sizes.append(team.size)
        grow(team, left)

    monkeypatch.setattr(module.WorkerPool, "_grow", watched)
    data = [(torch.full((2, 4), i / 2000), 0) for i in range(900)]
    run = certify(tmp_path / "run", Smoothed(Slow(), Gaussian(0.5), batch_size=600), dataset=data, cluster=Cluster())
    assert sizes[:2] == [0, 1]
    assert max(sizes) == 3
    assert [row["index"] for row in run.rows()] == list(range(900))

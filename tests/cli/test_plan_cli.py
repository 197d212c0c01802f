"""``smoothcert plan --pilot``: the time and money of a large run, told from a small one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smoothcert import Anytime, Cohen, Gaussian, Smoothed, Staged, certify_dataset
from smoothcert.certify.plan import expected_samples
from smoothcert.report.pilot import find_pilot, guess_probabilities, sampling_rate
from smoothcert.types import UsageError

LOG = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t0.5\t1\t0:00:50\n1\t1\t-1\t0.0\t0\t0:00:50\n"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "sigma_0.50"
    path.write_text(LOG)
    return path


def test_a_log_tells_speed_and_probabilities(log):
    pilot = find_pilot(log)
    assert sampling_rate(pilot, 100_100) == pytest.approx(2002)
    np.testing.assert_allclose(guess_probabilities(pilot, Gaussian(0.5)), [0.8413447, 0.5], atol=1e-6)


@pytest.mark.parametrize(("procedure", "drawn"), [(Cohen(n=20_000), 20_100), (Anytime(n_max=20_000), 20_000)])
def test_a_run_tells_them_by_its_votes(tmp_path, half_space, procedure, drawn):
    data = [(torch.tensor([0.5 + shift, 0.5]), 1) for shift in (0.1, 0.5)]
    run = certify_dataset(
        Smoothed(half_space, Gaussian(0.5)),
        data,
        procedure,
        run=tmp_path / "run",
        progress=False,
        seed=0,
    )
    pilot = find_pilot(run.path)
    np.testing.assert_allclose(guess_probabilities(pilot, Gaussian(0.5)), [0.5793, 0.8413], atol=0.02)
    assert sampling_rate(pilot, 1) == pytest.approx(2 * drawn / sum(row["seconds"] for row in run.rows()))


@pytest.mark.parametrize("procedure", [Anytime(radius=0.25), Staged(radius=0.25, stages=(100, 1000, 10_000))])
def test_expected_samples_are_those_that_are_drawn(procedure, half_space):
    noise, shifts = Gaussian(0.5), (-0.3, 0.1, 0.4, 0.8)
    x = [torch.tensor([0.5 + shift, 0.5], dtype=torch.float64) for shift in shifts for _ in range(50)]
    smoothed = Smoothed(half_space, noise, input_range=None)
    drawn = [
        answer.samples for _, answer in smoothed.run(enumerate(x), procedure, procedure.certify, count=len(x), seed=0)
    ]
    probabilities = [float(torch.special.ndtr(torch.tensor(abs(shift) / 0.5))) for shift in shifts]
    expected = expected_samples(procedure, noise, probabilities)
    assert np.mean(drawn) == pytest.approx(expected, rel=0.25)
    assert expected_samples(Cohen(n=500), noise, probabilities) == 600


def test_the_table_of_costs(run, log):
    code, out, err = run(
        *("plan", "--sigma", 0.5, "--procedure", "anytime", "--radius", 0.25, "--pilot", log),
        *("--inputs", 1_000_000, "--workers", 64, "--price", 2),
    )
    assert code == 0, err
    first, _, head, fixed, early = out.splitlines()
    assert first == "1,000,000 inputs like the 2 of sigma_0.50, on 64 worker(s) of 2,002 samples per second:"
    assert head.split() == ["procedure", "samples", "per", "input", "worker-hours", "hours", "price"]
    assert fixed.split() == ["cohen,", "n", "=", "100,000", "100,100", "13,888.9", "217.01", "27,778"]
    samples = float(early.split()[3].replace(",", ""))
    assert 100 < samples < 2000
    assert float(early.split()[-1].replace(",", "")) == pytest.approx(samples * 1e6 / 2002 / 3600 * 2, rel=0.01)


def test_without_a_price_there_is_none_and_a_rate_can_be_given(run, log):
    code, out, err = run("plan", "--sigma", 0.5, "--n", 1000, "--pilot", log, "--rate", 500, "--inputs", 3600)
    assert code == 0, err
    assert out.splitlines()[-1].split() == ["cohen,", "n", "=", "1,000", "1,100", "2.2", "2.20"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--price", "2"], "--price is for a plan from a pilot; give --pilot too."),
        (["--rate", "2"], "--rate is for a plan from a pilot"),
        (["--pilot", "{missing}"], "does not exist"),
        (["--pilot", "{log}", "--rate", "-1"], "give --rate, the samples per second of one worker"),
        (["--pilot", "{log}", "--procedure", "anytime"], "depend on its target; give a radius"),
    ],
)
def test_what_does_not_fit_is_refused(run, log, tmp_path, options, message):
    given = [option.format(log=log, missing=tmp_path / "missing") for option in options]
    code, out, err = run("plan", "--sigma", 0.5, *given)
    assert code == 2
    assert message in err
    assert "procedure  " not in out or "target" in message


def test_a_pilot_is_one_certification(log, tmp_path):
    (tmp_path / "other").write_text(LOG)
    with pytest.raises(UsageError, match=r"one pilot, but .* holds 2"):
        find_pilot(tmp_path)

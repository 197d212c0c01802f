"""ACES: its three branches, its votes at every threshold, its prediction, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smoothcert import ABSTAIN, Aces, Cohen, Consensus, Ensemble, Gaussian, Guarantee, Smoothed, Uniform
from smoothcert.certify import Task, answer
from smoothcert.sampling import ESTIMATION, PREDICTION, SELECTION, Entropy, FirstShare
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.stats import lower_bound
from smoothcert.types import UsageError, Votes

NOISE = Gaussian(0.3)
X = torch.tensor([0.2, 0.5, 0.7, 0.4])


def linear(seed: int, classes: int = 3, scale: float = 3.0) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, classes)
    with torch.no_grad():
        model.weight *= scale
    return model.double()


def copies(stage: int, n: int, index: int = 0) -> torch.Tensor:
    rows = torch.empty(n, 4, dtype=torch.float64)
    NoisyCopies(X.double()).fill(rows, X.double(), NOISE, seed=0, index=index, stage=stage, start=0)
    return rows


def test_entropy_is_counted_at_the_smallest_threshold_that_lets_it_pass():
    logits = torch.randn(2000, 5, dtype=torch.float64) * 3
    p = logits.softmax(1).numpy()
    entropy = -(p * np.log(p)).sum(1) / math.log(5)
    for steps in (10, 100):
        codes = Entropy(steps).codes(logits).numpy()
        for j in range(steps + 1):
            assert ((codes <= j) == (entropy <= j / steps)).all()


def test_sure_even_and_invalid_rows():
    logits = torch.tensor([[1e30, 0.0, 0.0], [0.0, 0.0, 0.0], [float("nan"), 0, 0], [float("inf"), 0, 0]])
    assert Entropy().codes(logits).tolist() == [0, 100, -1, -1]
    two = torch.tensor([[0.0, 0.0], [-100.0, 100.0], [100.0, -100.0], [float("nan"), 0.0]])
    assert FirstShare().codes(two).tolist() == [50, 0, 100, -1]


@pytest.mark.parametrize("theta", [0.0, 0.2, 0.5, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("network", [False, True])
def test_certificate_and_prediction_equal_the_algorithms_in_plain_steps(theta, network):
    """Algorithms 1 and 4 of the paper, on the same noisy copies."""
    certifier, selector, core = linear(1), linear(7, 2), linear(3)
    procedure = Aces(core=core, selector=selector if network else None, theta=theta, n=3000, alpha=0.01)
    smoothed = Smoothed(certifier, NOISE, runtime="eager")

    def asked(stage, n):
        rows = copies(stage, n)
        with torch.no_grad():
            logits = certifier(rows)
            if network:
                score = selector(rows).softmax(1)[:, 0]
            else:
                p = logits.softmax(1)
                score = -(p * p.log()).sum(1) / math.log(3)
        votes = np.bincount(logits.argmax(1).numpy(), minlength=3)
        certify = int((score <= theta + 1e-12).sum())
        return votes, (n - certify, certify)

    with torch.no_grad():
        core_class = int(core(X.double()[None]).argmax())
    votes0, choice0 = asked(SELECTION, 100)
    votes, choice = asked(ESTIMATION, 3000)
    s = 0 if choice0[0] > choice0[1] else 1
    c = int(votes0.argmax())
    p_s, p_a = lower_bound(choice[s], 3000, 0.005), lower_bound(int(votes[c]), 3000, 0.005)
    expected = (ABSTAIN, 0.0)
    if s == 1 and min(p_s, p_a) > 0.5:
        expected = (c, float(NOISE.radius(min(p_s, p_a))))
    elif (s == 0 and p_s > 0.5) or (c == core_class and p_a > 0.5):
        expected = (core_class, 0.0)
    given = smoothed.certify(X, procedure, seed=0, index=0)
    assert (given.label, given.radius) == expected
    assert given.guarantee is Guarantee.ROUTED
    assert given.alpha_split == {"selector": 0.005, "top class": 0.005}
    assert given.routing.choice == (s if p_s > 0.5 else ABSTAIN)
    assert given.routing.core == core_class
    assert given.samples == 3100 * (2 if network else 1)

    from scipy.stats import binomtest

    votes, choice = asked(PREDICTION, 3000)
    second, first = np.argsort(votes, kind="stable")[-2:]
    rho = binomtest(int(votes[first]), int(votes[first] + votes[second]), 0.5).pvalue
    sure = binomtest(max(choice), 3000, 0.5).pvalue <= 0.005
    predicted = ABSTAIN
    if choice[1] > choice[0] and sure and rho <= 0.005:
        predicted = int(first)
    elif (choice[0] > choice[1] and sure) or (first == core_class and rho <= 0.005):
        predicted = core_class
    assert smoothed.predict(X, procedure, seed=0, index=0).label == predicted


def scripted(classes, scores, theta=0.5, core=None, alpha=0.001):
    """The certificate for given shares of votes, the same in selection and estimation."""

    def draw(request):
        votes = tuple(round(share * request.n) for share in classes)
        bins = np.zeros(101, dtype=int)
        bins[0], bins[100] = round(scores * request.n), request.n - round(scores * request.n)
        return Votes(request.n, votes), Votes(request.n, tuple(bins.tolist()))

    logits = torch.eye(len(classes))
    procedure = Aces(
        core=None if core is None else (lambda x: logits[core].expand(len(x), -1)), theta=theta, n=10_000, alpha=alpha
    )
    task = Task(Gaussian(0.5), len(classes), 4, 0, 0, X)
    return answer(procedure.certify(task), draw), answer(procedure.predict(task), draw)


def test_all_branches():
    certified, predicted = scripted((0.1, 0.9), 0.8, core=0)
    assert certified.label == predicted.label == 1
    assert certified.radius == float(Gaussian(0.5).radius(lower_bound(8000, 10_000, 0.0005)))
    certified, predicted = scripted((0.1, 0.9), 0.2, core=0)
    assert (certified.label, certified.radius, predicted.label) == (0, 0.0, 0)  # the core is chosen
    certified, predicted = scripted((0.1, 0.9), 0.5, core=1)
    assert (certified.label, certified.radius, predicted.label) == (1, 0.0, 1)  # nobody is, but both agree
    certified, predicted = scripted((0.1, 0.9), 0.5, core=0)
    assert certified.label == predicted.label == ABSTAIN
    certified, predicted = scripted((0.5, 0.5), 0.9, core=0)
    assert certified.label == predicted.label == ABSTAIN  # the certifier is chosen and does not know
    certified, predicted = scripted((0.1, 0.9), 0.2)
    assert certified.label == predicted.label == ABSTAIN  # there is no core


def test_the_core_needs_a_sure_choice_to_be_predicted():
    """Printed is "or": 5 020 of 10 000 votes for the core would do."""
    _, predicted = scripted((0.1, 0.9), 0.498, core=0)
    assert predicted.label == ABSTAIN


def test_theta_one_is_cohen_at_half_alpha_and_theta_zero_is_the_core():
    smoothed, core = Smoothed(linear(1), NOISE, runtime="eager"), linear(3)
    plain = smoothed.certify(X, Cohen(n=2000, alpha=0.005), seed=0, index=0)
    everything = smoothed.certify(X, Aces(core=core, theta=1.0, n=2000, alpha=0.01), seed=0, index=0)
    top = float(NOISE.radius(lower_bound(2000, 2000, 0.005)))
    assert (everything.label, everything.radius) == (plain.label, min(plain.radius, top))
    with torch.no_grad():
        assert smoothed.certify(X, Aces(core=core, theta=0.0, n=2000), seed=0, index=0).label == int(
            core(X.double()[None]).argmax()
        )


@pytest.mark.parametrize("noise", [NOISE, Uniform(0.5)])
def test_certifiers_and_noises_compose(noise):
    members = [linear(seed) for seed in (1, 2, 3)]
    for certifier in (Ensemble(members), Consensus(members, 2)):
        smoothed = Smoothed(certifier, noise, runtime="eager", batch_size=64)
        certificate = smoothed.certify(X, Aces(core=members[0], theta=0.9, n=1000), seed=0, index=0)
        assert sum(certificate.routing.counts) == sum(certificate.counts) == 1000
        assert certificate.norm is noise.norms[0]


def test_invalid_logits_choose_nobody():
    def broken(x):
        logits = torch.stack([x[:, 0] * 0 + 5, x[:, 0] * 0], dim=1)
        logits[x[:, 0] > 0.2] = torch.nan
        return logits

    certificate = Smoothed(broken, NOISE).certify(X, Aces(theta=1.0, n=1000), seed=0, index=0)
    assert certificate.routing.n == 1000
    assert sum(certificate.routing.counts) == sum(certificate.counts) < 700


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"theta": 1.2}, "theta must lie between 0 and 1"),
        ({"theta": -0.1}, "theta must lie between 0 and 1"),
        ({"theta": 0.155}, "multiple of 0.01"),
        ({"n": 0}, "n must be a whole number"),
        ({"alpha": 1.0}, "alpha must lie strictly"),
    ],
)
def test_refuses_settings(settings, words):
    with pytest.raises(UsageError, match=words):
        Aces(**settings)


def test_refuses_a_core_of_other_classes():
    with pytest.raises(UsageError, match=r"core has 4 classes, but .* has 3; use a core with the same classes"):
        Smoothed(linear(1), NOISE).certify(X, Aces(core=linear(2, classes=4), n=1000))


def test_configuration_tells_models_apart():
    first, second = Aces(core=linear(1)).config(), Aces(core=linear(2)).config()
    assert first["core"]["sha256"] != second["core"]["sha256"]
    assert first["selector"] is None

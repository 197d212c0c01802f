"""Ensembles of Gaussian LeNets at σ = 0.50: members, votes, K-consensus, and all of it with Anytime.

Trains five members that differ in their seed (``smoothcert train mnist-gaussian-0.50-quick --set seed=1`` …), orders
and weighs them on the training images kept out, certifies them alone and in ensembles of three and five by every vote
(n = 10 000), then measures in one run, in alternation, what K-consensus and Anytime save.
The members' logits on each noisy copy are computed once and serve all votes; that the certificates are those of
``Smoothed.certify`` is checked on the images that are timed.
Rebuilds ``docs/ensembles-mnist.md`` or ``docs/ensembles-fashion-mnist.md``. Trainings are kept in the work folder.

Usage: python benchmarks/ensembles.py [--dataset mnist] [--work DIR] [--every 100]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from torch import Tensor, nn

from shared import DOCS, kept_out, members, table
from smoothcert import Anytime, Certificate, Cohen, Consensus, Ensemble, Gaussian, Smoothed, data
from smoothcert.certify import Task, answer
from smoothcert.classifiers import VOTES
from smoothcert.report.metrics import average_certified_radius, certified_accuracy
from smoothcert.sampling import ESTIMATION, SELECTION, Draw, TopClass
from smoothcert.sampling.member_logits import member_logits
from smoothcert.store import Outcomes
from smoothcert.training.ensembles import fit_margin, fit_weights, rank_members
from smoothcert.types import Votes

NOISE = Gaussian(0.5)
SEEDS = range(5)
RADII = (0.0, 0.5, 1.0, 1.5)
TARGETS = (0.25, 0.5, 1.0)
SAMPLES = 10_000
FEW, MANY = range(0, 10_000, 500), range(0, 10_000, 100)  # images that are timed
FIXED = Cohen(n=100_000)
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}


Vote = Callable[[list[Tensor]], Tensor]
"""From the logits of all members to those of an ensemble of some of them."""


def certify_votes(
    found: list[nn.Module], votes: dict[str, Vote], test: data.Dataset, indices: range
) -> dict[str, list[Certificate]]:
    """The certificates of all ensembles, from one pass of every member over each noisy copy."""
    procedure = Cohen(n=SAMPLES)
    certificates: dict[str, list[Certificate]] = {name: [] for name in votes}
    for index in track(indices, "certify"):
        x = test[index][0]
        given = {
            stage: torch.from_numpy(member_logits(found, x, NOISE, n=n, index=index, stage=stage).noisy).float()
            for stage, n in ((SELECTION, procedure.n0), (ESTIMATION, procedure.n))
        }
        for name, vote in votes.items():
            counts = {
                stage: TopClass().codes(vote(list(logits))).bincount(minlength=10) for stage, logits in given.items()
            }
            steps = procedure.certify(Task(NOISE, 10, x.numel(), 0, index))
            drawn = partial(_votes, counts)
            certificates[name].append(answer(steps, drawn))
    return certificates


def _votes(counts: dict[int, Tensor], request: Draw) -> tuple[Votes]:
    return (Votes(request.n, tuple(counts[request.stage].tolist())),)


def row(name: str, certificates: list[Certificate], test: data.Dataset) -> dict[str, object]:
    labels = test.arrays()[1].numpy()
    columns = zip(*((c.index, c.label, c.radius) for c in certificates), strict=True)
    index, predict, radius = (np.array(column) for column in columns)
    outcomes = Outcomes(name, index, labels[index], predict, radius)
    return {
        "inputs": len(outcomes),
        "acr": average_certified_radius(outcomes),
        "certified": [float(value) for value in certified_accuracy(outcomes, RADII)],
        "kcr": None,
    }


def timed(
    model: nn.Module, procedure: Cohen | Anytime, test: data.Dataset, indices: range
) -> tuple[float, dict[int, Certificate]]:
    """Seconds to certify test images, with the runtime prepared before, and the certificates."""
    smoothed = Smoothed(model, NOISE)
    smoothed.prepare(test[0][0], samples=len(indices) * procedure.expected_samples)
    begin = time.perf_counter()
    inputs = ((index, test[index][0]) for index in indices)
    jobs = smoothed.run(inputs, procedure, procedure.certify, count=len(indices))
    answers = {job.index: certificate for job, certificate in jobs}
    return time.perf_counter() - begin, answers


def measure(
    found: list[nn.Module],
    rules: dict[str, Consensus],
    expected: dict[str, list[Certificate]],
    test: data.Dataset,
    turns: int = 3,
) -> dict[str, dict[str, float]]:
    """What each consensus saves alone and with Anytime, by the clock: medians over turns in alternation."""
    anytimes = {f"anytime at {radius:g}": Anytime(radius=radius) for radius in TARGETS}
    ratios: dict[str, dict[str, list[float]]] = {
        name: {what: [] for what in ("consensus", *anytimes)} for name in rules
    }
    given = {}
    for _ in range(turns):
        every_member, given["five, soft"] = timed(Ensemble(found), Cohen(n=SAMPLES), test, FEW)
        fixed = timed(found[0], FIXED, test, FEW[::4])[0] / len(FEW[::4])
        for name, consensus in rules.items():
            two_members, given[name] = timed(consensus, Cohen(n=SAMPLES), test, FEW)
            ratios[name]["consensus"].append(every_member / two_members)
            for what, procedure in anytimes.items():
                early = timed(consensus, procedure, test, MANY)[0] / len(MANY)
                ratios[name][what].append(fixed / early)
    for name, answers in given.items():
        for certificate in expected[name]:
            if certificate.index in answers:
                # Votes can differ only where two logits tie within rounding error.
                assert np.abs(np.subtract(certificate.counts, answers[certificate.index].counts)).max() <= 2
    return {name: {what: sorted(values)[turns // 2] for what, values in each.items()} for name, each in ratios.items()}


def agreed(consensus: Consensus, shares: list[float], logits: list[Tensor]) -> Tensor:
    """What a consensus makes of the logits of all its members; notes the share that the first of them decide."""
    given = torch.cat(logits[: consensus.first], dim=1)
    decided, undecided = consensus.split(given)
    shares.append(1 - float(undecided.double().mean()))
    rest = sum(share * one for share, one in zip(consensus.shares, logits, strict=True) if share)
    return torch.where(undecided[:, None], rest, decided)


def kept(rows: dict[str, dict[str, object]], name: str) -> dict[str, float]:
    """How much of what five members gain over one a consensus keeps, in percent."""
    alone = [row["acr"] for member, row in rows.items() if member.startswith("member")]
    bases = {"best": max(alone), "first": alone[0], "mean": float(np.mean(alone))}
    return {
        base: 100 * (rows[name]["acr"] - value) / (rows["five, soft"]["acr"] - value) for base, value in bases.items()
    }


def page(
    dataset: str,
    every: int,
    rows: dict[str, dict[str, object]],
    saved: dict[str, dict[str, float]],
    weights: tuple[float, ...],
    margin: float,
) -> str:
    lines = [
        f"| {name.removeprefix('five, ')} | {kept(rows, name)['best']:.0f} | {kept(rows, name)['first']:.0f} "
        f"| {kept(rows, name)['mean']:.0f} | {ratio['consensus']:.2f} × "
        f"{''.join(f'| {value:.0f} × ' for what, value in ratio.items() if what != 'consensus')}|\n"
        for name, ratio in saved.items()
    ]
    return f"""\
# Ensembles on {NAMES[dataset]} at σ = 0.50

Gaussian LeNets of five seeds (`{dataset}-gaussian-0.50-quick`), certified with n = 10 000, α = 0.001 on
{rows["five, soft"]["inputs"]} test images, evenly spaced. Certified accuracy and the share decided by the first
members (KCR) are in percent. Members are ordered, weights learned, and the margin found
on the 500 training images kept out.
`python benchmarks/ensembles.py --dataset {dataset} --every {every}` rebuilds this page.

{table(rows, RADII, kcr=True)}
What a consensus keeps of the ACR that five members gain over one of them (in percent; the paper compares with the
first member and keeps 81 and 70 % with two), how much faster it is than asking all five, and how much less time it
takes with Anytime at a radius (on {len(MANY)} images, up to 100 000 samples each) than *one* member with n = 100 000,
per image:

| consensus | of the gain over the best | over the first | over their mean | speed \
{"".join(f"| with Anytime at {radius:g} " for radius in TARGETS)}|
|{"---|" * (5 + len(TARGETS))}
{"".join(lines)}
The margin is {margin:g}: two members that agree, and whose class leads by less, ask the others too. Agreement alone
loses copies on which two are wrong together and unsure; `fit_margin` finds how sure they must be without labels and
without test images. With Anytime, one image close to the radius can take as many samples as all others.
Weights of the members in order: {", ".join(f"{weight:.2f}" for weight in weights)}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", choices=NAMES, default="mnist")
    parser.add_argument("--work", type=Path, default=Path("models"), help="where trainings are kept")
    parser.add_argument("--every", type=int, default=100, help="certify every this many-th test image")
    chosen = parser.parse_args()
    found = members(f"{chosen.dataset}-gaussian-0.50-quick", SEEDS, chosen.work)
    test = data.load(chosen.dataset, split="test")
    x, y = kept_out(chosen.dataset)
    found = [member.to(memory_format=torch.channels_last) for member in found]  # faster on a CPU
    ranked = rank_members(found, x, y, NOISE)
    found = [found[member.position] for member in ranked]
    votes: dict[str, Vote] = {f"member {n + 1}": (lambda logits, n=n: logits[n]) for n in range(len(found))}
    weights: tuple[float, ...] = ()
    for words, size in (("three", 3), ("five", 5)):
        weights = fit_weights(found[:size], x, y, NOISE)
        for vote, rule in VOTES.items():
            shares = weights if vote == "weighted" else [1 / size] * size
            votes[f"{words}, {vote}"] = lambda logits, rule=rule, shares=shares: rule(logits[: len(shares)], shares)
    margin = fit_margin(found, 2, x, NOISE)
    rules = {
        "five, consensus of two": Consensus(found, 2),
        "five, consensus of two with a margin": Consensus(found, 2, margin=margin),
        "five, consensus of three": Consensus(found, 3),
    }
    # The shares that the first members decide, of the selection and the estimation samples in turn.
    decided: dict[str, list[float]] = {name: [] for name in rules}
    for name, consensus in rules.items():
        votes[name] = partial(agreed, consensus, decided[name])
    certificates = certify_votes(found, votes, test, range(0, 10_000, chosen.every))
    rows = {name: row(name, given, test) for name, given in certificates.items()}
    for name, shares in decided.items():
        rows[name]["kcr"] = float(np.mean(shares[1::2]))
    saved = measure(found, rules, certificates, test)
    accuracies = [member.accuracy for member in ranked]
    numbers = {"rows": rows, "saved": saved, "accuracy": accuracies, "margin": margin}
    print(json.dumps({"benchmark": "ensembles", "dataset": chosen.dataset, **numbers}))
    text = page(chosen.dataset, chosen.every, rows, saved, weights, margin)
    (DOCS / f"ensembles-{chosen.dataset}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

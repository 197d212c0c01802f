"""ACES from stored results: Algorithms 1 and 4 in plain loops, the published curves, and what is refused."""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import stats

from smoothcert import Discrete, Gaussian, Smoothed, Uniform
from smoothcert.certify import Aces
from smoothcert.evaluate import certify_dataset
from smoothcert.report.aces import (
    Components,
    check_comparable,
    components_from_votes,
    compose,
    load_components,
    load_single,
    natural_accuracy,
    pareto,
    predictions,
    selection_counts,
    signed_selection_radius,
)
from smoothcert.report.figures.aces import entropy_figure, pareto_figure, selection_figure
from smoothcert.report.metrics import average_certified_radius, certified_accuracy
from smoothcert.report.tables.aces import aces_table, parse_thetas, render_aces
from smoothcert.stats import lower_bound
from smoothcert.store import Outcomes, read_log, write_run
from smoothcert.types import Norm, RunError, UsageError

PREFIX = "aces-cifar10-consistency-025/cifar10_consistency_025"
CORE = "aces-cifar10-consistency-025/lanet_core_prediction"
SIGMA, ALPHA, N0, N, CLASSES, STEPS = 0.5, 0.001, 20, 400, 4, 10
RADIUS = Gaussian(SIGMA).radius


@pytest.fixture(scope="module")
def copies():
    """Noisy copies of 60 inputs: scores in thousandths (negative: invalid) and classes, of both samples."""
    random = np.random.default_rng(7)
    inputs = []
    for _ in range(60):
        centre, spread, sure = random.uniform(-100, 1100), random.choice([5, 100, 400]), random.uniform(0.0, 1.05)
        top = int(random.integers(CLASSES))
        samples = []
        for n in (N0, N):
            scores = np.clip(np.rint(random.normal(centre, spread, n) / 10) * 10, 0, 1000).astype(int)  # many on θ
            classes = np.where(random.random(n) < sure, top, random.integers(0, CLASSES, n))
            invalid = random.random(n) < random.choice([0.0, 0.02, 0.45])
            samples.append([(-1, -1) if bad else (s, c) for s, c, bad in zip(scores, classes, invalid, strict=True)])
        core = int(top if random.random() < 0.7 else random.integers(CLASSES))
        inputs.append(SimpleNamespace(selection=samples[0], estimation=samples[1], core=core, label=top))
    return inputs


def histogram(sample):
    bins = [0] * (STEPS + 1)
    for score, _ in sample:
        if score >= 0:
            bins[-(-score * STEPS // 1000)] += 1
    return bins


def classes(sample):
    return [sum(c == wanted for _, c in sample) for wanted in range(CLASSES)]


def votes(copies):
    return {
        "selection": [classes(each.selection) for each in copies],
        "counts": [classes(each.estimation) for each in copies],
        "selector0": [histogram(each.selection) for each in copies],
        "selector": [histogram(each.estimation) for each in copies],
    }


def from_votes(copies, radius=RADIUS, alpha=ALPHA, norm=Norm.L2, **changes):
    index, label = np.arange(len(copies)), [each.label for each in copies]
    given = {**votes(copies), "core": [each.core for each in copies], "n": N, **changes}
    return components_from_votes(("run", index, label), alpha=alpha, radius=radius, norm=norm, **given)


def lower_conf_bound(k, n, alpha):
    return 0.0 if k == 0 else stats.beta.ppf(alpha, k, n - k + 1)


def certify(each, j):
    """Algorithm 1 for one input at θ = j/STEPS, with > ½ for every bound."""

    def choice(score):
        return -1 if score < 0 else int(score * STEPS <= 1000 * j)

    core0 = sum(choice(s) == 0 for s, _ in each.selection)
    certify0 = sum(choice(s) == 1 for s, _ in each.selection)
    s_hat = 0 if core0 > certify0 else 1
    c_hat = int(np.argmax(classes(each.selection)))
    p_s = lower_conf_bound(sum(choice(s) == s_hat for s, _ in each.estimation), N, ALPHA / 2)
    p_a = lower_conf_bound(sum(c == c_hat for _, c in each.estimation), N, ALPHA / 2)
    p = min(p_s, p_a)
    if s_hat == 1 and p > 0.5:
        return c_hat, SIGMA * stats.norm.ppf(p)
    if s_hat == 0 and p_s > 0.5:
        return each.core, 0.0
    if c_hat == each.core and p_a > 0.5:
        return c_hat, 0.0
    return -1, 0.0


def predict(each, j):
    """Algorithm 4 for one input at θ = j/STEPS, two-sided, with "and" in the second branch."""
    n1 = sum(s >= 0 and s * STEPS <= 1000 * j for s, _ in each.estimation)
    n0 = sum(s * STEPS > 1000 * j for s, _ in each.estimation)
    counts = classes(each.estimation)
    order = sorted(range(CLASSES), key=lambda c: -counts[c])
    a, b = counts[order[0]], counts[order[1]]
    p_s = stats.binomtest(n1, n0 + n1).pvalue if n0 + n1 else 1.0
    p_a = stats.binomtest(a, a + b).pvalue if a + b else 1.0
    if n1 > n0 and p_s <= ALPHA / 2 and p_a <= ALPHA / 2:
        return order[0]
    if n0 > n1 and p_s <= ALPHA / 2:
        return each.core
    if order[0] == each.core and p_a <= ALPHA / 2:
        return order[0]
    return -1


def test_algorithms_1_and_4_in_plain_loops(copies):
    parts = from_votes(copies)
    seen = set()
    for j in range(STEPS + 1):
        theta = j / STEPS
        outcomes, predicted = compose(parts, theta), predictions(parts, theta)
        answers, radii = map(np.array, zip(*(certify(each, j) for each in copies), strict=True))
        plain = [predict(each, j) for each in copies]
        assert outcomes.predict.tolist() == answers.tolist()
        assert outcomes.radius == pytest.approx(radii, rel=1e-9, abs=1e-12)
        assert predicted.tolist() == plain
        at = parts.position(theta)
        seen |= set(zip(parts.choice[at].tolist(), (answers >= 0).tolist(), strict=True))
        seen |= {("predict", c, p >= 0) for c, p in zip(parts.choice_predicted[at].tolist(), plain, strict=True)}
        label = parts.certifier.label
        assert average_certified_radius(outcomes) == pytest.approx(np.mean(radii * (answers == label)))
        assert natural_accuracy(parts, theta) == np.mean(np.array(plain) == label)
    # Every branch was taken: a choice of either, agreement without one, and abstentions with and without one.
    assert {(1, True), (1, False), (0, True), (-1, True), (-1, False)} <= seen
    assert {("predict", c, True) for c in (1, 0, -1)} | {("predict", -1, False), ("predict", 1, False)} <= seen


def test_each_part_has_half_of_alpha():
    n = 1000
    k = next(k for k in range(500, n) if lower_bound(k, n, ALPHA) > 0.5)
    assert lower_bound(k, n, ALPHA / 2) <= 0.5
    common = {"selection": [[0, 9]], "selector0": [[9, 0]], "core": [0], "n": n}
    sure = {"counts": [[0, n]], "selector": [[n, 0]]}
    named = ("run", [0], [1])

    def parts(**changes):
        return components_from_votes(named, **common, **{**sure, **changes}, alpha=ALPHA, radius=RADIUS)

    def at(**changes):
        return compose(parts(**changes), 0.0)

    assert at().predict[0] == 1
    assert at(counts=[[n - k, k]]).predict[0] == -1
    assert at(selector=[[k, n - k]]).predict[0] == -1
    assert at(counts=[[n - k - 20, k + 20]]).predict[0] == 1
    k = next(k for k in range(500, n) if stats.binomtest(k, n).pvalue <= ALPHA)
    assert stats.binomtest(k, n).pvalue > ALPHA / 2
    for more, answer in ((0, -1), (2, -1), (3, 1)):  # the p-value falls below α/2 three votes later
        assert (stats.binomtest(k + more, n).pvalue <= ALPHA / 2) == (answer >= 0)
        assert parts(counts=[[n - k - more, k + more]]).predicted[0] == answer
        assert parts(selector=[[k + more, n - k - more]]).choice_predicted[0, 0] == answer


def test_invalid_copies_vote_for_nobody_but_count():
    n = 1000
    parts = components_from_votes(
        ("run", [0], [1]),
        core=[0],
        selection=[[0, 9]],
        counts=[[0, n]],
        selector0=[[9, 0]],
        selector=[[450, 0]],  # all valid copies agree, but are fewer than half
        n=n,
        alpha=ALPHA,
        radius=RADIUS,
    )
    assert parts.choice[:, 0].tolist() == [-1, -1]
    assert selection_counts(parts, 1.0, [0.0]).tolist() == [0]
    assert parts.choice_radius.max() == 0


def test_many_thresholds_are_quick():
    random = np.random.default_rng(0)
    inputs, n = 200, 100_000
    split = random.multinomial(n, random.dirichlet(np.full(101, 0.05), size=inputs))
    counts = random.multinomial(n, random.dirichlet(np.full(10, 0.3), size=inputs))
    given = {"selection": counts // 1000, "counts": counts, "selector0": split // 1000, "selector": split}
    labels = random.integers(0, 10, inputs)
    begin = time.process_time()
    parts = components_from_votes(
        ("run", np.arange(inputs), labels), core=labels, **given, n=n, alpha=ALPHA, radius=RADIUS
    )
    pareto(parts)
    assert time.process_time() - begin < 1.0
    assert parts.choice.shape == (101, inputs)


@pytest.mark.parametrize(
    ("noise", "norm"), [(Gaussian(0.5), "l2"), (Uniform(0.5), "l1"), (Discrete(0.8, 1), "l0"), (Uniform(0.5), "linf")]
)
def test_run_folder(copies, tmp_path, noise, norm):
    path = run_folder(tmp_path / "run", copies, noise, norm)
    if norm == "linf":
        with pytest.raises(UsageError, match="depend on the size of an input"):
            load_components(path)
        return
    parts, wanted = load_components(path), from_votes(copies, partial(noise.radius, norm=norm), norm=Norm(norm))
    assert parts.certifier.norm is Norm(norm)
    for field in ("predicted", "core", "thetas", "choice", "choice_radius", "choice_predicted"):
        assert np.array_equal(getattr(parts, field), getattr(wanted, field))
    assert np.array_equal(parts.certifier.radius, wanted.certifier.radius)
    assert parts.settings["n"] == N
    core = core_log(tmp_path / "core", copies, predict=3)
    assert set(load_components(path, core).core.tolist()) == {3}
    certifier = load_single(path)
    assert (certifier.outcomes.radius >= parts.certifier.radius).all()
    assert certifier.outcomes.radius.max() >= parts.certifier.radius.max() > 0
    bounds = [lower_conf_bound(k, N, ALPHA) for k in np.array(votes(copies)["counts"]).max(axis=1)]
    assert certifier.outcomes.radius.max() == pytest.approx(float(noise.radius(max(bounds), norm)))


def run_folder(path, copies, noise=None, norm="l2", core=True, procedure="aces", config=None, **columns):
    noise = noise or Gaussian(SIGMA)
    size = len(copies)
    column = {
        "index": list(range(size)),
        "label": [each.label for each in copies],
        "predict": [-1] * size,
        "radius": [0.0] * size,
        "alpha": [ALPHA] * size,
        "norm": [norm] * size,
        "n": [N] * size,
        "n0": [N0] * size,
        **votes(copies),
        "core": pa.array([each.core if core else None for each in copies], pa.int64()),
        **columns,
    }
    table = pa.table({key: value for key, value in column.items() if value is not None})
    settings = {"kind": "certification", "noise": noise.config(), "procedure": {"name": procedure}}
    write_run(path, table, {**settings, **(config or {})}, {})
    return path


def core_log(path, copies, predict=None, shift=0, header="idx\tlabel\tpredict"):
    rows = [(i, each.label + shift, each.core if predict is None else predict) for i, each in enumerate(copies)]
    path.write_text(header + "\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows))
    return path


class Slope(torch.nn.Module):
    """Logits that grow with the distance of the first coordinate from ½, so that entropy falls with it."""

    def forward(self, x):
        score = 8 * (x[:, 0] - 0.5)
        return torch.stack([-score, score], dim=1)


@pytest.mark.parametrize("grid", [None, 10])
@pytest.mark.parametrize("theta", [0.0, 0.25, 0.5, 0.8, 1.0])
def test_a_run_composes_to_its_own_certificates(tmp_path, theta, grid):
    # Inputs on both sides of ½, near and far; the core is wrong beyond 0.8.
    inputs = [(torch.tensor([value]), int(value > 0.5)) for value in np.arange(-4, 15, dtype=np.float32) / 10]

    def core(x):
        return torch.stack([x[:, 0] * 0 + 0.5, ((x[:, 0] > 0.5) & (x[:, 0] < 0.8)).float()], dim=1)

    procedure = Aces(core=core, theta=theta, n0=20, n=300, steps=20)
    smoothed = Smoothed(Slope(), Gaussian(0.3, grid), runtime="eager", input_range=None)
    rows = certify_dataset(smoothed, inputs, procedure, run=tmp_path / "run", progress=False, seed=0).rows()
    parts = load_components(tmp_path / "run")
    outcomes, at = compose(parts, theta), parts.position(theta)
    assert outcomes.predict.tolist() == [row["predict"] for row in rows]
    assert outcomes.radius == pytest.approx([row["radius"] for row in rows], rel=1e-12)
    assert parts.choice[at].tolist() == [row["choice"] for row in rows]
    assert parts.choice_radius[at] == pytest.approx([row["choice_radius"] for row in rows], rel=1e-12)
    assert (outcomes.radius > 0).any() == (theta > 0)
    assert any(row["offset"] > 0 for row in rows) == (grid is not None)


class Stripes(torch.nn.Module):
    """Class 1 below ½; above it, narrow stripes of two other classes, so that class 1 is often short of a majority."""

    def forward(self, x):
        stripe = torch.where(x[:, 0] < 0.5, 0, 1 + (x[:, 0] * 50).floor().long() % 2)
        return 20.0 * torch.eye(3)[stripe]


def test_a_run_with_the_runner_up_bound_composes_to_its_own_certificates(tmp_path):
    inputs = [(torch.tensor([value]), 0) for value in np.linspace(0.2, 0.65, 10, dtype=np.float32)]
    procedure = Aces(core=lambda x: torch.zeros(len(x), 3), n=1_000, bound="runner-up")
    smoothed = Smoothed(Stripes(), Gaussian(0.3), runtime="eager")
    rows = certify_dataset(smoothed, inputs, procedure, run=tmp_path / "run", progress=False, seed=0).rows()
    assert sum(row["p_upper"] is not None for row in rows) > 4
    assert any(row["radius"] > 0 and row["p_lower"] < 0.5 for row in rows)
    parts = load_components(tmp_path / "run")
    outcomes = compose(parts, 0.3)
    assert outcomes.predict.tolist() == [row["predict"] for row in rows]
    assert outcomes.radius == pytest.approx([row["radius"] for row in rows], rel=1e-12)
    alone = load_single(tmp_path / "run").outcomes
    assert (alone.radius >= parts.certifier.radius).all()


def test_offsets_are_taken_off_the_radii(copies, tmp_path):
    offsets = np.linspace(0, 0.2, len(copies)).tolist()
    for load in (load_components, load_single):
        plain, moved = (
            load(run_folder(tmp_path / f"{load.__name__}-{i}", copies, **columns))
            for i, columns in enumerate(({}, {"offset": offsets}))
        )
        one, other = (getattr(parts, "certifier", None) or parts.outcomes for parts in (plain, moved))
        assert other.radius == pytest.approx(np.maximum(one.radius - offsets, 0), abs=1e-12)
        assert (other.radius <= np.maximum(one.radius - offsets, 0)).all()
        assert other.predict.tolist() == one.predict.tolist()
    parts = [load_components(tmp_path / f"load_components-{i}") for i in (0, 1)]
    assert parts[1].choice_radius == pytest.approx(np.maximum(parts[0].choice_radius - offsets, 0), abs=1e-12)


def test_votes_of_several_noises_or_experts_are_refused(copies, tmp_path):
    chosen = run_folder(tmp_path / "chosen", copies, sigma=[0.3] * 60)
    experts = run_folder(tmp_path / "experts", copies, procedure="cohen", config={"experts": [{}, {}]})
    other = run_folder(tmp_path / "other", copies, procedure="cohen")
    for load in (load_components, load_single):
        with pytest.raises(UsageError, match="noise chosen for each input"):
            load(chosen)
        with pytest.raises(UsageError, match="several experts"):
            load(experts)
    with pytest.raises(UsageError, match="kept no votes of a selector"):
        load_components(other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"selector": None}, "kept no votes of a selector"),
        ({"core": False}, "has no answers of a core; give its prediction log with --core"),
        ({"alpha": [0.001] * 59 + [0.01]}, r"different alpha \(0.001 and 0.01\)"),
        ({"n": [400] * 59 + [500]}, r"different n \(400 and 500\)"),
        ({"n": [300] * 60}, "is damaged: the row of input 1 has counts that are negative or more"),
        ({"selector0": [[1] * 11] * 59 + [[1] * 10]}, "equally many counts in every row"),
    ],
)
def test_runs_that_cannot_be_composed(copies, tmp_path, changes, words):
    with pytest.raises((UsageError, RunError), match=words):
        load_components(run_folder(tmp_path / "run", copies, **changes))


def test_cores_that_do_not_fit(copies, tmp_path):
    run = run_folder(tmp_path / "run", copies, core=False)
    assert load_components(run, core_log(tmp_path / "core", copies)).core.tolist() == [each.core for each in copies]
    many = [*copies, *copies]  # a core may know more inputs
    assert len(load_components(run, core_log(tmp_path / "many", many)).core) == 60
    refused = {
        core_log(tmp_path / "few", copies[:-1]): "other inputs than run: it lacks input 59",
        core_log(tmp_path / "labels", copies, shift=1): "has other labels than run: .* for input 0",
        run: "holds a certification, which does not have the core's answers",
        tmp_path / "nothing": "log .* does not exist",
    }
    for path, words in refused.items():
        with pytest.raises(UsageError, match=words):
            load_components(run, path)


def test_published_logs(shared_data):
    parts = load_components(shared_data / PREFIX, shared_data / CORE)
    assert parts.thetas.tolist() == [j / 100 for j in range(101)]
    assert len(parts.certifier.index) == 500
    natural, acr = pareto(parts)
    assert [round(100 * share, 1) for share in natural[[0, 10, 100]]] == [99.0, 97.6, 76.0]
    assert [round(radius, 3) for radius in acr[[0, 10, 100]]] == [0.0, 0.254, 0.535]
    _, at_half = pareto(parts, 0.5)
    assert round(100 * at_half[30], 1) == 39.8
    # The printed 38.4 counts the 5 inputs whose selector abstains.
    assert selection_counts(parts, 0.1, [0.0]).tolist() == [187]
    assert (parts.choice[10] == -1).sum() == 5
    single = load_single(shared_data / f"{PREFIX}_certification")
    assert round(100 * single.natural, 1) == 76.0
    with pytest.raises(UsageError, match=r"no threshold 0\.305; the nearest stored is 0\.3"):
        compose(parts, 0.305)


def published_copy(shared_data, folder):
    """Links to some of the published logs, to take away from or add to."""
    for name in ("certification", "entropies", *(f"selection_{j / 10:.2f}" for j in range(11))):
        (folder / f"x_{name}").symlink_to(shared_data / f"{PREFIX}_{name}")
    return folder / "x"


def test_missing_and_wrong_logs_are_named(shared_data, tmp_path):
    prefix, core = published_copy(shared_data, tmp_path), shared_data / CORE

    def refused(words, path=prefix, core=core, **given):
        with pytest.raises(UsageError, match=words):
            load_components(path, core, **given)

    assert len(load_components(prefix, core).thetas) == 11
    refused("neither the run folder .*/y nor the log .*/y_certification exists", tmp_path / "y")
    refused("give its prediction log with --core", core=None)
    refused("x_certification holds a certification", core=tmp_path / "x_certification")
    refused(r"have no threshold 0\.15; the nearest is 0\.[12]\.", thetas=[0.15])
    (tmp_path / "x_selection_0.30").unlink()
    refused(r"the logs of .*x have no threshold 0\.3; the nearest is 0\.2")
    assert 0.3 not in load_components(prefix, core, thetas=[0.1]).thetas
    (tmp_path / "x_selection_0.30").symlink_to(shared_data / CORE)
    refused("x_selection_0.30 must hold a selection, but holds a prediction")
    (tmp_path / "x_selection_0.30").unlink()
    lines = (tmp_path / "x_selection_0.20").read_text().splitlines(keepends=True)
    (tmp_path / "x_selection_0.30").write_text("".join(lines[:-1]))
    refused("x_selection_0.30 is about other inputs than x_certification")
    (tmp_path / "x_selection_0.30").write_text("".join(line.rsplit("\t", 2)[0] + "\n" for line in lines))
    refused("x_selection_0.30 has no column 'unperturbed predict'")
    (tmp_path / "x_selection_0.30").write_text("".join(lines).replace("20\t0", "20\t2"))
    refused("a selection must be 1 .certifier., 0 .core. or -1")
    (tmp_path / "x_selection_0.30").rename(tmp_path / "x_selection_high")
    refused("x_selection_high does not end with a unique threshold")
    (tmp_path / "x_selection_high").unlink()
    (tmp_path / "x_certification").unlink()
    refused("x_certification is missing")


def test_imported_logs_read_as_the_logs_do(shared_data, tmp_path):
    prefix, core = published_copy(shared_data, tmp_path), shared_data / CORE
    wanted = load_components(prefix, core)
    folder = tmp_path / "runs"
    for path in [core, *tmp_path.glob("x_*")]:
        log = read_log(path)
        write_run(folder / path.name, log.table, {"kind": f"imported {log.kind.value}"}, {})
    parts = load_components(folder / "x", folder / core.name)
    assert render_aces(aces_table([parts]), "csv") == render_aces(aces_table([wanted]), "csv")
    assert np.array_equal(parts.median, wanted.median)
    assert load_single(folder / "x_certification").natural == load_single(tmp_path / "x_certification").natural
    with pytest.raises(UsageError, match="imported certification; give the common prefix"):
        load_components(folder / "x_certification", core)


def test_singles_that_tell_no_natural_accuracy(copies, tmp_path, shared_data):
    plain_run = run_folder(tmp_path / "plain", copies, procedure="cohen", selector=None)
    counts = np.array(votes(copies)["counts"])
    right = counts.argmax(axis=1) == [each.label for each in copies]
    sure = [stats.binomtest(int(b), int(a + b)).pvalue <= ALPHA for a, b in np.sort(counts, axis=1)[:, -2:]]
    assert load_single(plain_run).natural == np.mean(right & sure)
    with pytest.raises(UsageError, match="not certified with a fixed n"):
        load_single(run_folder(tmp_path / "early", copies, procedure="anytime", selector=None))
    with pytest.raises(UsageError, match="has no column 'unperturbed predict'"):
        load_single(shared_data / "cohen-cifar10-050" / "sigma_0.50")
    with pytest.raises(UsageError, match="holds a prediction; a single classifier needs a certification"):
        load_single(shared_data / CORE)


def small(**changes):
    certifier = Outcomes("run", [0, 1, 2, 3], [5, 5, 5, 5], [5, 5, 5, -1], [0.5, 0.2, 0.9, 0.0])
    given = {
        "certifier": certifier,
        "predicted": [5, 5, 5, -1],
        "core": [5, 5, 7, 5],
        "thetas": [0.0, 0.1],
        "choice": [[0, 0, 0, 0], [1, -1, 0, 1]],
        "choice_radius": [[0.9] * 4, [0.3, 0.0, 0.8, 0.7]],
        "choice_predicted": [[0, 0, 0, 0], [1, -1, 0, 1]],
        "median": [0.05, 0.1, 0.2, 0.06],
    }
    return Components(**{**given, **changes})


def test_composition_by_hand():
    parts = small()
    outcomes = compose(parts, 0.1)
    # Certified; agreement without a choice; a wrong core; a chosen certifier that abstains though the core is right.
    assert outcomes.predict.tolist() == [5, 5, 7, -1]
    assert outcomes.radius.tolist() == [0.3, 0.0, 0.0, 0.0]
    assert certified_accuracy(outcomes, [0, 0.25, 0.31]).tolist() == [0.5, 0.25, 0.0]
    assert selection_counts(parts, 0.1, [0, 0.3, 0.5, 0.8]).tolist() == [2, 2, 1, 0]
    assert selection_counts(parts, 0.0, 0).tolist() == [0]
    assert signed_selection_radius(parts, 0.1).tolist() == [0.3, 0.0, -0.8, 0.7]
    assert natural_accuracy(parts, 0.0) == 0.75
    with pytest.raises(ValueError, match="read-only"):
        parts.choice[0, 0] = 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"thetas": [0.1, 0.0]}, "must ascend"),
        ({"thetas": [0.0, 1.5]}, "within"),
        ({"core": [5, 5, 7]}, r"core has shape \(3,\), but \(4,\) is needed"),
        ({"core": [5.0, 5.0, 7.0, 5.0]}, "core must hold a whole number"),
        ({"predicted": [5, 5, 5, -2]}, "predicted has a class below -1"),
        ({"choice": [[0, 0, 0, 2], [1, -1, 0, 1]]}, "must be 1 .certifier., 0 .core. or -1"),
        ({"choice_radius": [[0.9] * 4, [0.3, 0.1, 0.8, 0.7]]}, "abstains must have radius 0"),
        ({"choice_radius": [[0.9] * 4, [0.3, 0.0, 0.8, np.inf]]}, "finite"),
        ({"median": [0.1]}, "median has shape"),
    ],
)
def test_parts_that_do_not_fit(changes, words):
    with pytest.raises(UsageError, match=words):
        small(**changes)


def test_what_cannot_stand_in_one_table():
    def like(name="other", label=5, **settings):
        certifier = Outcomes(name, [0, 1, 2, 3], [label] * 4, [5, 5, 5, -1], [0.5, 0.2, 0.9, 0.0])
        return small(certifier=certifier, settings={"sigma": 0.25, "n": 100, "alpha": 0.001, **settings})

    first = like("run")
    check_comparable([first, like(), small()])
    for key, value in {"sigma": 0.5, "n": 1000, "alpha": 0.01}.items():
        with pytest.raises(UsageError, match=f"{key} is {first.settings[key]} in run and {value} in other"):
            check_comparable([first, like(**{key: value})])
    with pytest.raises(UsageError, match="other is about other inputs than run"):
        check_comparable([first, like(label=6)])
    with pytest.raises(UsageError, match="no runs"):
        check_comparable([])
    with pytest.raises(UsageError, match="lies outside"):
        compose(first, 1.1)
    for text in ("0.1,1.2", "-0.1", "x", "0.1,0.1", "nan"):
        with pytest.raises(UsageError, match="with numbers in"):
            parse_thetas(text)
    assert parse_thetas("0:0.3:0.1") == (0.0, 0.1, 0.2, 0.3)


def test_pareto_figure_draws_the_points():
    parts = small()
    single = SimpleNamespace(outcomes=parts.certifier, natural=0.75)
    for radius, label in (
        (None, "average certified radius (norm unknown)"),
        (0.25, "certified accuracy (%) at radius 0.25 (norm unknown)"),
    ):
        (axes,) = pareto_figure([parts], [single], radius=radius, title="Both").axes
        natural, robust = pareto(parts, radius)
        curve, dots, square, point = axes.get_lines()
        scale = 1 if radius is None else 100
        for line in (curve, dots):
            assert np.array_equal(line.get_data(), (100 * natural, scale * robust))
        assert square.get_xdata().tolist() == [75.0]
        acr = average_certified_radius(parts.certifier)
        assert point.get_data() == ([75.0], [acr if radius is None else 50.0])
        assert axes.get_xlabel() == "natural accuracy (%)"
        assert axes.get_ylabel() == label
    other = Outcomes("elsewhere", [0, 1], [5, 5], [5, 5], [0.1, 0.1])
    with pytest.raises(UsageError, match="elsewhere is about other inputs than run"):
        pareto_figure([parts], [SimpleNamespace(outcomes=other, natural=1.0)])


def test_selection_figure_sorts_signed_radii():
    figure = selection_figure(small(), [0.0, 0.1])
    (axes,) = figure.axes
    _, core_only, line = axes.get_lines()
    assert line.get_xdata().tolist() == [0, 25, 50, 75, 100]
    assert line.get_ydata()[:-1].tolist() == [-0.8, 0.0, 0.3, 0.7]
    assert set(core_only.get_ydata()) == {-0.9}
    assert axes.get_xlabel() == "percentile of inputs (%)"
    assert axes.get_ylabel().startswith("certified radius of the selection (norm unknown)")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["θ = 0", "θ = 0.1"]
    with pytest.raises(UsageError, match="no thresholds to draw"):
        selection_figure(small(), [])


def test_entropy_figure_counts_every_input_once():
    figure = entropy_figure(small(median=[0.05, 0.1, 0.2, 0.052]), 0.5, theta=0.15)
    (axes,) = figure.axes
    certified, others = axes.containers
    heights = {round(bar.get_x(), 2): bar.get_height() for bar in certified if bar.get_height()}
    assert heights == {0.05: 25.0, 0.2: 25.0}  # inputs 0 and 2
    assert sum(bar.get_height() for bar in [*certified, *others]) == pytest.approx(100.0)
    on_top = next(bar for bar in others if bar.get_height() and bar.get_x() < 0.06)  # input 3 above input 0
    assert on_top.get_y() == 25.0
    assert axes.get_ylabel() == "share of inputs (%)"
    with pytest.raises(UsageError, match="no median entropies"):
        entropy_figure(small(median=None), 0.5)
    with pytest.raises(UsageError, match="at least 0"):
        entropy_figure(small(), -1.0)


def test_median_of_the_scores(copies):
    medians = from_votes(copies).median
    for each, found in zip(copies, medians, strict=True):
        true = np.median([score for score, _ in each.estimation if score >= 0]) / 1000
        assert abs(found - true) <= 0.5 / STEPS + 0.01

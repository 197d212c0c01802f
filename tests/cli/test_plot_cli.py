"""``smoothcert plot``: every kind draws what the runs hold, and refuses what it cannot draw in one sentence."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from smoothcert import Anytime, Cohen, Gaussian, Smoothed, certify_dataset, data, models
from smoothcert.cli.plot import KINDS, PlotOptions
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.report.figures.style import COLOURS
from smoothcert.report.metrics import average_certified_radius
from smoothcert.report.recompute import outcomes_of
from smoothcert.store import load_run
from smoothcert.store.noisy_copies import noisy_copies
from smoothcert.types import RunError, UsageError

DIGITS = data.load("digits", split="test")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of two models at several noise levels and numbers of samples, over the same ten digits."""
    folder = tmp_path_factory.mktemp("plots")
    for lam in (1.0, 20.0):
        torch.manual_seed(int(lam))
        model = models.build("digits-cnn")
        path = folder / f"lam-{lam:g}.safetensors"
        recipe = {"recipe": {"method": {"name": "macer", "lam": lam}, "epochs": 2}}
        save_checkpoint(path, model, CheckpointInfo.of("digits-cnn", sigma=0.25, extra=recipe))
        source = {"checkpoint": str(path), "sha256": models.describe(path).sha256}
        for sigma, n in ((0.1, 100), (0.25, 100), (0.25, 1100)):
            run = folder / "runs" / f"lam-{lam:g}-sigma-{sigma:g}-n-{n}"
            smoothed = Smoothed(model, Gaussian(sigma), runtime="eager")
            certify_dataset(smoothed, DIGITS, Cohen(n=n), run=run, every=50, progress=False, source=source, seed=0)
    smoothed = Smoothed(model, Gaussian(0.25), runtime="eager")
    procedure = Anytime(radius=0.1, n_max=1000)
    certify_dataset(smoothed, DIGITS, procedure, run=folder / "early" / "anytime", every=50, progress=False, seed=0)
    (folder / "empty").mkdir()
    shutil.copy(folder / "early" / "anytime" / "run.json", folder / "empty")
    return folder


def draw(kind, *paths, **options):
    return KINDS[kind][0](paths, PlotOptions(**options))


def test_curves_show_the_sampling_limit_of_every_run(runs):
    paths = [runs / "runs" / f"lam-1-sigma-{sigma}-n-100" for sigma in (0.1, 0.25)]
    (axes,) = draw("curve", *paths, runs / "early", intervals=True).axes
    limits = [float(np.ravel(line.get_xdata())[0]) for line in axes.get_lines() if line.get_linewidth() == 0.7]
    reach = stats.norm.ppf(0.001 ** (1 / 100))  # of all votes for one class
    assert limits == pytest.approx([0.1 * reach, 0.25 * reach], rel=1e-6)  # the anytime run has no fixed n
    assert len(axes.collections) == 3


def test_the_effect_of_a_setting_of_the_run(runs):
    left, _ = draw("effect", runs / "runs", over="procedure.n", radii=(0, 0.1)).axes
    (line,) = [line for line in left.get_lines() if line.get_marker() == "o"]
    acr = {100: [], 1100: []}
    for path in (runs / "runs").iterdir():
        acr[int(path.name.rsplit("-", 1)[1])].append(average_certified_radius(outcomes_of(load_run(path))))
    assert line.get_xdata().tolist() == [100, 1100]
    assert line.get_ydata() == pytest.approx([np.mean(acr[100]), np.mean(acr[1100])])
    assert left.get_xscale() == "log"


def test_the_effect_of_a_setting_of_the_recipe(runs):
    left, right = draw("effect", runs / "runs", over="recipe.method.lam", bars="sd").axes
    (line,) = [line for line in left.get_lines() if line.get_marker() == "o"]
    assert line.get_xdata().tolist() == [1.0, 20.0]
    assert left.get_xlabel() == right.get_xlabel() == "recipe.method.lam"
    with pytest.raises(
        UsageError, match=r"unknown setting of .* 'recipe\.method\.lan'; did you mean 'recipe\.method\.lam'"
    ):
        draw("effect", runs / "runs", over="recipe.method.lan")
    with pytest.raises(UsageError, match="anytime does not record its checkpoint"):
        draw("effect", runs / "early", over="recipe.epochs")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"checkpoint": "gone.safetensors", "sha256": ""}, "came from a checkpoint that cannot be read now"),
        ({"sha256": "0"}, "has changed since"),
    ],
)
def test_checkpoints_that_are_not_what_they_were(runs, tmp_path, source, words):
    run = tmp_path / "run"
    shutil.copytree(runs / "runs" / "lam-1-sigma-0.1-n-100", run)
    info = json.loads((run / "run.json").read_text())
    del info["sha256"]  # written by hand
    info["sessions"][0]["source"] |= source
    (run / "run.json").write_text(json.dumps(info))
    with pytest.raises(UsageError, match=words):
        draw("effect", run, over="recipe.epochs")


def test_confidence_and_samples_take_every_run(runs):
    figure = draw("confidence", runs / "runs", runs / "early")
    assert len([text for text in figure.legends[0].get_texts() if "abstained)" in text.get_text()]) == 7
    (axes,) = draw("samples", runs / "early").axes
    used = [row["n"] + row["n0"] for row in load_run(runs / "early" / "anytime").rows()]
    (mean,) = [line for line in axes.get_lines() if line.get_linewidth() == 0.7]
    assert np.ravel(mean.get_xdata())[0] == pytest.approx(np.mean(used))


def test_inputs_show_the_copies_that_were_certified(runs):
    path = runs / "runs" / "lam-1-sigma-0.25-n-1100"
    run = load_run(path)
    rows = {row["index"]: row for row in run.rows()}
    figure = draw("inputs", path, index="150,50", copies=3)
    assert len(figure.axes) == 10
    for row, index in enumerate((150, 50)):
        images = [np.asarray(axes.images[0].get_array()) for axes in figure.axes[5 * row : 5 * row + 4]]
        x, label = DIGITS[index]
        assert np.array_equal(images[0], x[0].double().numpy())
        copies = noisy_copies(run, rows[index], x, 3).clamp(0, 1).double().numpy()
        assert np.array_equal(images[1:], copies[:, 0])
        bars = figure.axes[5 * row + 4]
        assert [bar.get_width() for bar in bars.patches] == pytest.approx([k / 11 for k in rows[index]["counts"]])
        assert figure.axes[5 * row].get_xlabel() == f"class {label}"


def test_without_an_index_the_extremes_and_the_middle(runs):
    path = runs / "runs" / "lam-1-sigma-0.25-n-1100"
    ordered = sorted(load_run(path).rows(), key=lambda row: (row["radius"], row["index"]))
    wanted = [ordered[place]["index"] for place in (0, 5, 9)]
    figure = draw("inputs", path)
    assert [axes.get_title() for axes in figure.axes[::6]] == [f"input {index}" for index in wanted]


def test_the_dataset_may_come_from_a_file(runs, tmp_path):
    path = runs / "runs" / "lam-1-sigma-0.1-n-100"
    images, labels = DIGITS.arrays()
    names = np.array([f"digit {i}" for i in range(10)])
    np.savez(tmp_path / "mine.npz", x=images.numpy(), y=labels.numpy(), class_names=names)
    figure = draw("inputs", path, data_name=str(tmp_path / "mine.npz"), index="0")
    assert figure.axes[0].get_xlabel() == f"class digit {DIGITS[0][1]}"
    np.savez(tmp_path / "other.npz", x=1 - images.numpy(), y=labels.numpy())
    with pytest.raises(UsageError, match=r"certified on digits .* and this other with 500 is another dataset"):
        draw("inputs", path, data_name=str(tmp_path / "other.npz"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "--kind", "curv"], "unknown kind of figure 'curv'; did you mean 'curve'?"),
        (["runs", "--over", "noise.sigma"], "--over is for the kind effect, not for curve."),
        (["runs", "--kind", "samples", "--envelope"], "--envelope is for the kind curve, not for samples."),
        (["runs", "--kind", "effect"], "such as --over noise.sigma"),
        (["runs", "--kind", "effect", "--over", "noise.sigm"], "did you mean 'noise.sigma'"),
        (["runs", "--kind", "effect", "--over", "seed"], "all runs have seed = 0; name runs that differ in it."),
        (["runs", "-o", "curves.gif"], "a picture is saved as .png, .pdf, .svg"),
        (["runs", "--kind", "inputs"], "this figure needs one run folder that smoothcert certified; name one."),
        (["early", "--kind", "inputs", "--index", "3"], "input 3 is not among the 10 of"),
        (["early", "--kind", "inputs", "--index", "x"], "each of --index must be a whole number"),
        (["early", "--kind", "inputs", "--data", "digit"], "did you mean 'digits'"),
        (["early", "runs", "--kind", "tradeoff"], "the natural accuracy of anytime is not known"),
        (["nowhere"], "nowhere does not exist"),
        (
            ["early", "--kind", "inputs", "--labels", "a"],
            "--labels is for the kinds curve, tradeoff, confid",
        ),
        (["early", "--labels", "a,b"], "there are 2 labels for 1 results; give one for each of anytime."),
        (
            ["early", "runs", "--labels", "a,b,c,d,e,f,a"],
            "printable texts that differ, which 'a' is not",
        ),
        (["early", "--size", "3"], "such as 3.25x2.5, not '3'"),
        (["early", "--size", "1.2x1"], "do not fit into 1.2x1 inches"),
    ],
)
def test_refusals(run, runs, monkeypatch, arguments, words):
    monkeypatch.chdir(runs)
    before = sorted(runs.iterdir())
    code, out, err = run("plot", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert sorted(runs.iterdir()) == before


@pytest.mark.parametrize("kind", ["curve", "tradeoff", "confidence", "samples", "inputs"])
def test_an_empty_run_is_named(runs, kind):
    with pytest.raises(RunError, match="empty holds no rows yet"):
        draw(kind, runs / "empty")


def test_published_logs(shared_data):
    log = shared_data / "cohen-cifar10-050" / "sigma_0.50"
    (axes,) = draw("curve", log).axes
    radii, accuracy = axes.get_lines()[0].get_data()
    assert accuracy[0] == pytest.approx(65.2)  # as published at radius 0
    assert accuracy[np.searchsorted(radii, 1.0)] == pytest.approx(23.4)
    with pytest.raises(UsageError, match=r"natural accuracy of sigma_0\.50, cat-rs, .* is not known"):
        draw("tradeoff", log, shared_data / "catrs-fmnist-050")
    for kind in ("confidence", "samples"):
        with pytest.raises(UsageError, match=r"sigma_0\.50 does not have"):
            draw(kind, log)
    with pytest.raises(UsageError, match=r"sigma_0\.50 is not one"):
        draw("inputs", log)
    with pytest.raises(UsageError, match="is a log, which does not record its settings"):
        draw("effect", log, over="noise.sigma")


def test_a_composition_from_published_logs_beside_its_certifier(shared_data):
    prefix = shared_data / "aces-cifar10-consistency-025" / "cifar10_consistency_025"
    core = prefix.with_name("lanet_core_prediction")
    certifier = prefix.with_name(f"{prefix.name}_certification")
    (axes,) = draw("tradeoff", prefix, certifier, core=core).axes
    _, dots, _, point = axes.get_lines()
    assert round(point.get_xdata()[0], 1) == 76.0
    assert np.round(dots.get_xdata()[:5], 1).tolist() == [99.0, 97.6, 96.0, 93.8, 90.2]  # NAC in Table 8 of the paper
    assert np.round(dots.get_ydata()[:5], 3).tolist() == [0.0, 0.254, 0.323, 0.383, 0.437]  # and ACR
    with pytest.raises(UsageError, match="have no answers of a core"):
        draw("tradeoff", prefix)


def test_labels_are_the_names_in_the_legend(run, runs, tmp_path):
    paths = [runs / "runs" / f"lam-1-sigma-{sigma}-n-100" for sigma in (0.25, 0.1)]
    for kind in ("curve", "tradeoff", "confidence", "samples"):
        texts = [text.get_text() for text in draw(kind, *paths, labels=("Ours, λ", "Cohen")).legends[0].get_texts()]
        assert "Ours, λ" in texts[0]
        assert "Cohen" in texts[1]
    picture = tmp_path / "picture.png"
    assert run("plot", *paths, "--labels", '"Ours, λ",Cohen', "--size", "4x3", "-o", picture)[0] == 0
    assert Image.open(picture).size == (800, 600)


def test_a_run_keeps_its_colour_in_all_kinds(runs, shared_data):
    paths = [runs / "runs" / f"lam-1-sigma-{sigma}-n-100" for sigma in (0.1, 0.25)]
    for kind in ("curve", "tradeoff", "confidence", "samples"):
        handles = draw(kind, *paths).legends[0].legend_handles
        assert [handle.get_color() for handle in handles[:2]] == list(COLOURS[:2])
    prefix = shared_data / "aces-cifar10-consistency-025" / "cifar10_consistency_025"
    core, certifier = prefix.with_name("lanet_core_prediction"), prefix.with_name(f"{prefix.name}_certification")
    handles = draw("tradeoff", certifier, prefix, core=core).legends[0].legend_handles
    assert [handle.get_color() for handle in handles] == [COLOURS[1], COLOURS[0]]  # the curve is listed first


@pytest.mark.parametrize(("kind", "suffix"), [("tradeoff", "pdf"), ("samples", "svg"), ("confidence", "png")])
def test_pictures_are_written(run, runs, tmp_path, kind, suffix):
    picture = tmp_path / f"picture.{suffix}"
    path = runs / ("early" if kind == "samples" else "runs")
    assert run("plot", path, "--kind", kind, "-o", picture, "--title", "A title") == (0, "", f"Picture: {picture}\n")
    assert picture.stat().st_size > 5_000

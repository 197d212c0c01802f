"""What a user of the Python library tries first."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import smoothcert as sc
from smoothcert.certify import PROCEDURES
from smoothcert.training import METHODS
from smoothcert.types import CORE


class TwoShapes(nn.Module):
    """Accepts inputs of any shape: the mean decides."""

    def forward(self, x):
        score = x.flatten(1).mean(1) - 0.5
        return torch.stack([-score, score], dim=1)


@pytest.fixture(scope="module")
def digits():
    return sc.data.load("digits", split="test")


@pytest.fixture(scope="module")
def model():
    """The class of the nearest mean."""
    train = sc.data.load("digits", split="train")
    inputs, labels = (torch.stack([torch.as_tensor(pair[i]) for pair in train]) for i in (0, 1))
    means = torch.stack([inputs[labels == c].flatten(1).mean(0) for c in range(10)])
    linear = nn.Linear(64, 10)
    linear.load_state_dict({"weight": means, "bias": -means.square().sum(1) / 2})
    return nn.Sequential(nn.Flatten(), linear)


@pytest.fixture(scope="module")
def smoothed(model):
    return sc.Smoothed(model, sc.Gaussian(0.25))


@pytest.fixture(scope="module")
def finished(smoothed, digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    return sc.certify_dataset(smoothed, digits, sc.Cohen(200), run=folder, every=30, seed=1, progress=False)


# --- the namespace ------------------------------------------------------------------------------------------------


def test_import_loads_nothing_slow():
    code = "import smoothcert, sys; print([m for m in ('torch', 'scipy', 'pyarrow', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_packages_and_names_are_attributes():
    for name in ("attack", "classifiers", "data", "doctor", "evaluate", "models", "noise", "report", "stats", "store"):
        assert getattr(sc, name).__name__ == f"smoothcert.{name}"
    assert sc.training.train is sc.train
    assert callable(sc.doctor.examine)
    for error in (sc.UsageError, sc.DataError, sc.CheckpointError, sc.LogError, sc.RunError):
        assert issubclass(error, sc.SmoothcertError)
    for method in METHODS.values():
        assert getattr(sc, method.__name__) is method
    for procedure in PROCEDURES.values():
        assert getattr(sc, procedure.__name__) is procedure
    assert sc.Gaussian(0.25).sigma == 0.25
    assert set(sc.__all__) <= set(dir(sc))
    with pytest.raises(AttributeError, match="has no attribute 'Cohn'"):
        sc.Cohn  # noqa: B018


def test_type_checkers_see_every_name():
    """The names for type checkers are the public ones: those of the block that only they read."""
    text = Path(sc.__file__).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    block = text.partition("if TYPE_CHECKING:\n")[2].partition("\n__version__")[0]
    exec("\n".join(line.removeprefix("    ") for line in block.splitlines()), names)
    assert set(sc.__all__) == set(names) - {"__builtins__"}
    for name in sc.__all__:
        assert getattr(sc, name) is names[name]


def test_first_arguments_are_positional_and_the_others_named():
    assert sc.Cohen(1000) == sc.Cohen(n=1000)
    assert sc.Staged(0.5, stages=(10, 100)).radius == 0.5
    assert sc.Anytime(0.5).targets == (0.5,)
    assert sc.Anytime((0.25, 0.5)).targets == (0.25, 0.5)
    assert sc.Consistency(10.0).lam == 10.0
    assert sc.SmoothAdv(0.5, steps=2).epsilon == 0.5
    assert sc.SmoothMix(1.0).eta == sc.Stability(1.0).lam == sc.Macer(1.0).lam == sc.CatRS(1.0).lam == 1.0
    assert sc.NoiseAugmentation(2).m == 2
    assert sc.OptimizeSigma(10).steps == 10
    assert sc.GridSigma((0.25, 0.5)).grid == (0.25, 0.5)
    for two in (
        lambda: sc.Cohen(1000, 0.001),
        lambda: sc.Staged(0.5, (10, 100)),
        lambda: sc.Anytime(0.5, 0.1),
        lambda: sc.Consistency(1.0, 2.0),
    ):
        with pytest.raises(TypeError, match="positional"):
            two()
    with pytest.raises(sc.UsageError, match="whole number"):
        sc.Cohen(0.001)


# --- certify and predict --------------------------------------------------------------------------------------------


def test_certify_own_model_and_print():
    linear = nn.Linear(4, 2)
    certificate = sc.Smoothed(linear, sc.Gaussian(0.5)).certify(torch.full((4,), 0.5), sc.Cohen(1000))
    assert certificate.n == 1000


def test_numpy_inputs_and_lists_of_numbers(half_space):
    smoothed = sc.Smoothed(half_space, sc.Gaussian(0.25))
    x = np.array([0.9, 0.5], dtype=np.float32)
    expected = smoothed.certify(torch.from_numpy(x), sc.Cohen(100), seed=3)
    assert smoothed.certify(x, sc.Cohen(100), seed=3) == expected
    assert smoothed.certify(x.tolist(), sc.Cohen(100), seed=3, index=expected.index).counts == expected.counts


def test_images_of_pillow(smoothed, digits):
    pixels = (digits[0][0][0] * 255).round().to(torch.uint8).numpy()
    image = pytest.importorskip("PIL.Image").fromarray(pixels)
    one = smoothed.certify(image, sc.Cohen(150), seed=5)
    assert one == smoothed.certify(torch.from_numpy(pixels)[None] / 255, sc.Cohen(150), seed=5)
    assert smoothed.certify([image, image], sc.Cohen(150), seed=5) == [one, one]
    with pytest.raises(sc.UsageError, match="not a tensor or an array"):
        smoothed.certify(["digit.png"])


@pytest.mark.parametrize("procedure", [sc.Cohen(150), sc.Anytime(0.2, n_max=300)], ids=["cohen", "anytime"])
def test_a_batch_has_the_certificates_of_its_inputs(smoothed, digits, procedure):
    inputs = [digits[i][0] for i in (0, 7, 20, 0)]
    alone = [smoothed.certify(x, procedure, seed=5) for x in inputs]
    assert len({each.index for each in alone}) == 3
    for batch in (inputs, tuple(inputs), torch.stack(inputs), torch.stack(inputs).numpy()):
        assert smoothed.certify(batch, procedure, seed=5) == alone
    assert smoothed.certify(torch.stack(inputs), procedure, seed=5, batch=True) == alone


def test_predict_accepts_a_batch(smoothed, digits):
    inputs = [digits[i][0] for i in (0, 7)]
    alone = [smoothed.predict(x, seed=5) for x in inputs]
    assert smoothed.predict(torch.stack(inputs), seed=5) == alone


def test_a_batch_gets_one_fresh_seed(smoothed, digits):
    first, second = smoothed.certify([digits[0][0], digits[1][0]], sc.Cohen(20))
    assert first.seed == second.seed
    assert smoothed.certify([digits[0][0]], sc.Cohen(20))[0].seed != first.seed


def test_indices_of_a_batch(smoothed, digits):
    inputs = [digits[i][0] for i in (0, 7)]
    for indices in ([3, 3], [4, 9], np.array([4, 9])):  # the same index for different inputs must not mix them up
        found = smoothed.certify(inputs, sc.Cohen(50), seed=1, index=indices)
        one = [smoothed.certify(x, sc.Cohen(50), seed=1, index=int(i)) for x, i in zip(inputs, indices, strict=True)]
        assert found == one
    for wrong, x in (([1], inputs), (1, inputs), ([1], inputs[0])):
        with pytest.raises(sc.UsageError, match="index must be"):
            smoothed.certify(x, sc.Cohen(50), index=wrong)


class TestBatchOrInput:
    def test_rows_of_a_linear_model_are_a_batch(self):
        """Linear accepts (1, 5, 4) and returns (1, 5, 2), which are not the logits of one input."""
        smoothed = sc.Smoothed(nn.Linear(4, 2), sc.Gaussian(0.5))
        assert len(smoothed.certify(torch.full((5, 4), 0.5), sc.Cohen(20))) == 5
        assert smoothed.certify(torch.full((4,), 0.5), sc.Cohen(20)).n == 20

    def test_an_input_stays_one_if_the_model_accepts_both(self):
        smoothed = sc.Smoothed(TwoShapes(), sc.Gaussian(0.5))
        x = torch.full((3, 4), 0.9)
        assert smoothed.certify(x, sc.Cohen(20)).n == 20
        assert len(smoothed.certify(x, sc.Cohen(20), batch=True)) == 3
        assert smoothed.certify(x[0], sc.Cohen(20)).n == 20
        assert smoothed.certify(x, sc.Cohen(20)).n == 20  # whatever was certified before

    def test_a_list_of_tensors_is_a_batch_of_any_shapes(self):
        smoothed = sc.Smoothed(TwoShapes(), sc.Gaussian(0.5))
        inputs = [torch.full((3,), 0.9), torch.full((2, 2), 0.1)]
        found = smoothed.certify(inputs, sc.Cohen(50), seed=0)
        assert found == [smoothed.certify(x, sc.Cohen(50), seed=0) for x in inputs]

    def test_false_makes_a_batch_one_input(self):
        smoothed = sc.Smoothed(nn.Linear(4, 2), sc.Gaussian(0.5))
        with pytest.raises(sc.UsageError, match=r"logits|shape"):
            smoothed.certify(torch.full((5, 4), 0.5), sc.Cohen(20), batch=False)

    def test_errors_are_about_one_input_if_neither_fits(self):
        smoothed = sc.Smoothed(nn.Linear(4, 2), sc.Gaussian(0.5))
        with pytest.raises(sc.UsageError, match=r"batch of shape \(1, 3\)"):
            smoothed.certify(torch.full((3,), 0.5), sc.Cohen(20))

    def test_an_invalid_value_does_not_make_an_input_a_batch(self):
        smoothed = sc.Smoothed(TwoShapes(), sc.Gaussian(0.5))
        for bad in (2.0, math.nan):
            x = torch.full((2, 2), 0.5)
            x[1, 1] = bad
            with pytest.raises(sc.UsageError, match=r"spans|NaN"):
                smoothed.certify(x, sc.Cohen(20))

    def test_every_input_is_checked_before_sampling(self, forwards):
        smoothed = sc.Smoothed(TwoShapes(), sc.Gaussian(0.5))
        smoothed.certify(torch.full((3,), 0.5), sc.Cohen(20))
        before = len(forwards.seen)
        with pytest.raises(sc.UsageError, match="input 1 of the batch: the input spans"):
            smoothed.certify([torch.full((3,), 0.5), torch.full((3,), 1.5)], sc.Cohen(20))
        assert len(forwards.seen) == before

    def test_empty(self, smoothed):
        assert smoothed.certify([], batch=True) == []
        with pytest.raises(sc.UsageError, match="empty"):
            smoothed.certify([])
        with pytest.raises(sc.UsageError, match="one number"):
            smoothed.certify(0.5, batch=True)

    def test_a_memory_answers_in_the_order_of_the_batch(self, half_space):
        inputs = [torch.tensor([value, 0.5]) for value in (0.95, 0.05, 0.9)]

        def fresh():
            return sc.Smoothed(half_space, sc.Gaussian(0.25), sigma=sc.OptimizeSigma(1), memory=sc.Memory())

        one_by_one, together = fresh(), fresh()
        alone = [one_by_one.certify(x, sc.Cohen(100), seed=2) for x in inputs]
        assert together.certify(inputs, sc.Cohen(100), seed=2) == alone


# --- certificates as text and JSON ----------------------------------------------------------------------------------


def certificates(half_space):
    x, core = torch.tensor([0.9, 0.5]), nn.Linear(2, 2)
    plain = sc.Smoothed(half_space, sc.Gaussian(0.25))
    experts = (plain, sc.Smoothed(half_space, sc.Gaussian(0.5)))
    return {
        "cohen": plain.certify(x, sc.Cohen(2000)),
        "abstention": plain.certify(torch.tensor([0.5, 0.5]), sc.Cohen(50)),
        "staged": plain.certify(x, sc.Staged(0.1, stages=(100, 1000))),
        "anytime": plain.certify(x, sc.Anytime((0.1, 0.2), n_max=1000)),
        "whole-number target": plain.certify(x, sc.Anytime(1, n_max=1_000_000, alpha=0.5)),
        "aces": plain.certify(x, sc.Aces(core, n=200)),
        "router": sc.Smoothed(half_space, sc.Gaussian(0.25), experts=experts).certify(x, sc.Cohen(200)),
        "routed to a core": sc.Smoothed(half_space, sc.Gaussian(0.25), experts=(plain, core)).certify(x, sc.Cohen(500)),
        "exact": sc.Smoothed(half_space, sc.Gaussian(0.25, grid=255)).certify(torch.ones(2), sc.Cohen(100)),
        "l1": sc.Smoothed(half_space, sc.Uniform(0.5)).certify(x, sc.Cohen(100)),
    }


def test_certificates_survive_json(half_space):
    for name, certificate in certificates(half_space).items():
        text = json.dumps(certificate.to_dict(), allow_nan=False)
        again = sc.Certificate.from_dict(json.loads(text))
        assert again == certificate, name
        assert type(again.norm) is sc.Norm
        assert type(again.outcome) is sc.Outcome
        assert type(again.counts) is tuple
        assert sc.Certificate.from_dict(again.to_dict()) == certificate


def test_predictions_survive_json(half_space):
    smoothed = sc.Smoothed(half_space, sc.Gaussian(0.25))
    for x in ([0.9, 0.5], [0.5, 0.5]):
        prediction = smoothed.predict(x)
        assert sc.Prediction.from_dict(json.loads(json.dumps(prediction.to_dict()))) == prediction


BAD = {
    "an unknown key": ({"extra": 1}, "extra"),
    "text for a number": ({"label": "3"}, "label"),
    "a fraction for a class": ({"label": 1.5}, "label"),
    "a truth value for a number": ({"n": True}, "n"),
    "NaN": ({"radius": math.nan}, "JSON"),
    "infinity": ({"radius": math.inf}, "JSON"),
    "a negative radius": ({"radius": -0.1}, "radius"),
    "a huge radius": ({"radius": 1e300}, "radius"),
    "an abstention with a radius": ({"label": -1}, "radius"),
    "a class below -1": ({"label": -2}, "label"),
    "an unknown norm": ({"norm": "l3"}, "norm"),
    "an unknown guarantee": ({"guarantee": "sure"}, "guarantee"),
    "alpha of 1": ({"alpha": 1.0}, "alpha"),
    "more votes than samples": ({"counts": [10**9, 0]}, "counts"),
    "negative votes": ({"selection": [-1, 1]}, "selection"),
    "a radius without a majority": ({"p_lower": 0.4}, "p_lower"),
    "a certified target beyond the radius": ({"decisions": {"9.0": "certified"}}, "decisions"),
    "an unknown outcome": ({"outcome": "proved"}, "outcome"),
    "a seed that is too large": ({"seed": 2**63}, "seed"),
    "a routing without votes": ({"routing": {"choice": 0}}, "routing"),
    "an object": ({"counts": object()}, "JSON"),
}


@pytest.mark.parametrize("what", BAD)
def test_invalid_certificates_are_refused(half_space, what):
    certificate = sc.Smoothed(half_space, sc.Gaussian(0.25)).certify([0.9, 0.5], sc.Cohen(100))
    changes, about = BAD[what]
    with pytest.raises(sc.UsageError, match=about) as error:
        sc.Certificate.from_dict({**certificate.to_dict(), **changes})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [None, [], "text", {}, {"label": 1}])
def test_other_values_are_not_certificates(wrong):
    with pytest.raises(sc.UsageError, match="not a certificate"):
        sc.Certificate.from_dict(wrong)


def test_a_certificate_explains_itself(half_space):
    certificate = sc.Smoothed(half_space, sc.Gaussian(0.25)).certify([0.9, 0.5], sc.Cohen(100))
    shown = replace(certificate, label=3, radius=0.52199, alpha=0.001)
    assert str(shown) == (
        "Class 3 for every perturbation with an l2 norm below 0.521; wrong with probability at most 0.001 over the "
        "noise (global guarantee, float arithmetic, 200 samples)."
    )
    assert "below 0.000000123;" in str(replace(shown, radius=1.239e-7))
    assert "of at most 3;" in str(replace(shown, radius=3.0, norm=sc.Norm.L0))
    assert str(replace(shown, label=sc.ABSTAIN, radius=0.0)).startswith("No class is certified at alpha = 0.001 (")
    assert str(replace(shown, label=CORE, radius=0.0)).startswith("Class 0 at this input, without a radius; wrong")
    prediction = sc.Smoothed(half_space, sc.Gaussian(0.25)).predict([0.9, 0.5], sc.Cohen(1_000))
    assert str(prediction) == (
        "Class 1 at this input; wrong with probability at most 0.001 over the noise (no radius, 1,000 samples)."
    )
    assert str(replace(prediction, label=sc.ABSTAIN)).startswith("No class is predicted")


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_measures_itself(finished):
    rows = finished.rows()
    right = [row["radius"] for row in rows if row["predict"] == row["label"]]
    assert len(finished) == len(rows) == 17
    assert finished.acr == pytest.approx(sum(right) / 17)
    assert finished.accuracy == len(right) / 17
    assert finished.accuracy > 0
    assert finished.certified_accuracy(0.2) == sum(radius >= 0.2 for radius in right) / 17
    assert isinstance(finished.certified_accuracy(0.2), float)
    assert finished.certified_accuracy([0, 0.2]).tolist() == [finished.accuracy, finished.certified_accuracy(0.2)]
    with pytest.raises(sc.UsageError, match="0 or larger"):
        finished.certified_accuracy(-1)
    frame = pytest.importorskip("pandas") and finished.to_pandas()
    assert frame["radius"].tolist() == [row["radius"] for row in rows]


def test_a_log_measures_itself(finished, tmp_path):
    sc.write_log(tmp_path / "log.tsv", finished.rows())
    log = sc.read_log(tmp_path / "log.tsv")
    assert len(log) == len(finished)
    assert log.accuracy == finished.accuracy
    assert log.acr == pytest.approx(finished.acr, abs=1e-6)
    assert log.acr <= finished.acr  # radii round down
    assert len(log.to_pandas()) == len(log)


def test_a_data_frame_needs_pandas(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(sc.UsageError, match="pip install pandas"):
        finished.to_pandas()


def test_a_run_is_a_path(finished, tmp_path):
    assert sc.load_run(finished) == finished
    assert Path(finished) == finished.path


def test_shards_are_merged(smoothed, digits, tmp_path):
    parts = [
        sc.certify_dataset(
            smoothed, digits, sc.Cohen(20), run=tmp_path / f"{i}", every=100, shard=(i, 2), seed=1, progress=False
        )
        for i in (1, 2)
    ]
    assert len(sc.merge_runs(parts, tmp_path / "all")) == len(parts[0]) + len(parts[1]) == 5


def test_reports(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "")  # five megabytes
    text = sc.report.table(finished, [0, 0.1], format="csv")
    assert text.splitlines()[0].startswith("name,acr,0.00,0.10,")
    assert sc.report.acr(finished) == finished.acr
    assert sc.report.certified_accuracy(finished.path, [0.1]).tolist() == [finished.certified_accuracy(0.1)]
    radii, accuracy = sc.report.curve(finished)
    assert radii[0] == 0
    assert accuracy[0] == finished.accuracy
    assert sc.report.compare(finished, finished).better is None
    assert "is better" not in sc.report.render_comparison(sc.report.compare(finished, finished), "md")
    figure = sc.report.plot([finished], tmp_path / "curve.png", title="Digits")
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert len(figure.axes) == 1
    sc.report.write_page(finished, tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")[:1000]


# --- models, training, attacks ---------------------------------------------------------------------------------------


def test_load_model_by_specifier(tmp_path):
    model = sc.models.build("digits-cnn")
    path = sc.save_checkpoint(tmp_path / "m.safetensors", model, sc.CheckpointInfo.of("digits-cnn", sigma=0.25))
    for specifier in (path, str(path), "torch.nn:Linear,in_features=64,out_features=10"):
        loaded = sc.load_model(specifier)
        assert isinstance(loaded, nn.Module)
        assert not loaded.training


def test_train_own_model_and_certify(digits):
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    train = sc.data.load("digits", split="train")
    settings = sc.TrainingSettings(epochs=1, batch_size=64, rate=0.1, holdout=0)
    sc.train(own, train, noise=sc.Gaussian(0.25), method=sc.Consistency(1.0), settings=settings, progress=False)
    found = sc.Smoothed(own, sc.Gaussian(0.25)).certify([digits[i][0] for i in range(5)], sc.Cohen(200))
    assert any(certificate.label == digits[i][1] for i, certificate in enumerate(found))


def test_errors_are_one_family(smoothed, tmp_path):
    for wrong, error in (
        (lambda: sc.Gaussian(-1), sc.UsageError),
        (lambda: smoothed.certify(torch.zeros(3, dtype=torch.uint8)), sc.UsageError),
        (lambda: sc.load_model(tmp_path / "missing.safetensors"), sc.CheckpointError),
        (lambda: sc.load_run(tmp_path), sc.RunError),
        (lambda: sc.read_log(tmp_path / "missing"), sc.LogError),
        (lambda: sc.data.load(str(tmp_path / "missing.npz")), sc.DataError),
    ):
        with pytest.raises(sc.SmoothcertError) as found:
            wrong()
        assert isinstance(found.value, error)
    with pytest.raises(ValueError, match="sigma"):
        sc.Gaussian(-1)


def test_attack(smoothed, digits):
    result = sc.attack_input(smoothed, *digits[0], radius=0.1, settings=sc.AttackSettings(steps=2, copies=4, votes=100))
    assert result.distance < 0.1


# --- the soft smoothed classifier ------------------------------------------------------------------------------------


def test_soft_is_the_mean_softmax(half_space):
    smoothed = sc.Smoothed(half_space, sc.Gaussian(0.25))
    x = torch.tensor([[0.9, 0.5], [0.4, 0.5]])
    both = smoothed.soft(x, 5000, seed=1, batch=True)
    assert both.shape == (2, 2)
    assert both.sum(1).tolist() == pytest.approx([1, 1])
    generator = torch.Generator().manual_seed(0)
    copies = x[0] + 0.25 * torch.randn((20_000, 2), generator=generator)
    assert both[0, 1].item() == pytest.approx(half_space(copies).softmax(1)[:, 1].mean().item(), abs=0.01)
    assert torch.equal(smoothed.soft(x[0], 5000, seed=1), both[0])
    assert torch.equal(smoothed.soft(x[0], 10, seed=1), smoothed.soft(x[0], 10, seed=1))
    assert not torch.equal(smoothed.soft(x[0], 10), smoothed.soft(x[0], 10))


@pytest.mark.parametrize("noise", [sc.Gaussian(0.5), sc.Gaussian(0.5, grid=256), sc.Uniform(0.5)], ids=repr)
def test_soft_has_the_gradient_of_its_value(noise):
    torch.manual_seed(0)
    linear = nn.Linear(3, 4).double()
    smoothed = sc.Smoothed(linear, noise)
    x = torch.rand((2, 3), dtype=torch.float64, requires_grad=True)

    def value(at):
        return smoothed.soft(at, 16, seed=7)[:, 1].sum()

    value(x).backward()
    assert linear.weight.grad is None  # the model itself is not touched
    step = 1e-5
    for place in np.ndindex(2, 3):
        moved = torch.zeros_like(x)
        moved[place] = step
        slope = (value((x + moved).detach()) - value((x - moved).detach())) / (2 * step)
        assert x.grad[place].item() == pytest.approx(slope.item(), rel=1e-6, abs=1e-9)


def test_soft_noise_is_not_that_of_certificates(half_space):
    """An input that was moved by the noise of its certificate would invalidate it."""
    seen: list[tuple[float, ...]] = []
    hook = register_module_forward_pre_hook(lambda module, given: seen.extend(map(tuple, given[0].tolist())))
    try:
        smoothed = sc.Smoothed(half_space, sc.Gaussian(0.25))
        x = torch.tensor([0.9, 0.5])
        smoothed.certify(x, sc.Cohen(20))  # verifies the model
        seen.clear()
        smoothed.soft(x, 20, seed=3)
        attacked = set(seen)
        seen.clear()
        for index in (0, None):
            smoothed.certify(x, sc.Cohen(200), seed=3, index=index)
            smoothed.predict(x, sc.Cohen(200), seed=3, index=index)
    finally:
        hook.remove()
    assert len(attacked) == 20
    assert len(set(seen)) > 400
    assert not attacked & set(seen)


def test_soft_refusals(half_space):
    smoothed = sc.Smoothed(half_space, sc.Gaussian(0.25))
    with pytest.raises(sc.UsageError, match="at least 1"):
        smoothed.soft([0.5, 0.5], 0)
    with pytest.raises(sc.UsageError, match="floating"):
        smoothed.soft([torch.tensor([1, 2])])
    for wrong in ([], [torch.zeros(2), torch.zeros(3)]):
        with pytest.raises(sc.UsageError, match="same shape"):
            smoothed.soft(wrong, batch=True)
    with pytest.raises(sc.UsageError, match="replaces values"):
        sc.Smoothed(half_space, sc.Discrete(0.8, 1)).soft([0.5, 0.5])
    with pytest.raises(sc.UsageError, match="router"):
        sc.Smoothed(half_space, sc.Gaussian(0.25), experts=(smoothed, half_space)).soft([0.5, 0.5])

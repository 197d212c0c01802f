"""Composed classifiers in a YAML file: the same rows as from options, on every command, and what is refused."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

import smoothcert as sc
from smoothcert import Aces, Cohen, Consensus, Ensemble, Gaussian, data, load_run, models
from smoothcert.classifiers import Denoised
from smoothcert.models import CheckpointInfo, save_checkpoint

SMALL = ["--data", "digits", "--n", 100, "--every", 200, "--seed", 0, "--runtime", "eager"]

FILES = {
    "vote": "kind: ensemble\nmembers: [a.safetensors, b.safetensors]\nvote: weighted\nweights: [0.7, 0.3]\n",
    "consensus": "kind: consensus\nmembers: [a.safetensors, b.safetensors, c.safetensors]\nfirst: 2\nmargin: 0.05\n",
    "denoised": "kind: denoised\nmodel: a.safetensors\ndenoiser: d.safetensors\n",
    "denoisers": """
kind: ensemble
members:
  - {kind: denoised, model: a.safetensors, denoiser: d.safetensors}
  - {kind: denoised, model: a.safetensors, denoiser: e.safetensors}
""",
    "routed": "kind: routed\nselector: two.safetensors\nexperts: [{model: a.safetensors}, {model: b.safetensors}]\n",
    "aces": "kind: aces\nmodel: a.safetensors\ncore: b.safetensors\nselector: two.safetensors\ntheta: 0.9\n",
}
OPTIONS = {
    "vote": ["{a}", "{b}", "--weights", "0.7,0.3"],
    "consensus": ["{a}", "{b}", "{c}", "--first", 2, "--margin", 0.05],
    "denoised": ["{a}", "--denoiser", "{d}"],
    "denoisers": ["{a}", "--denoiser", "{d}", "--denoiser", "{e}"],
    "routed": ["{a}", "{b}", "--router", "{two}"],
    "aces": ["{a}", "--procedure", "aces", "--core-model", "{b}", "--selector-model", "{two}", "--theta", 0.9],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    classifiers = {"a": 10, "b": 10, "c": 10, "two": 2, "five": 5}
    named = {**dict.fromkeys(classifiers, "digits-cnn"), "d": "dncnn-small", "e": "dncnn-small"}
    for seed, (name, arch) in enumerate(named.items()):
        classes = classifiers.get(name, 10)
        torch.manual_seed(seed)
        model = models.build_denoiser(arch) if arch.startswith("dncnn") else models.build(arch, num_classes=classes)
        info = CheckpointInfo.of(arch, num_classes=classes, sigma=0.25)
        save_checkpoint(made / f"{name}.safetensors", model, info)
    for name, text in FILES.items():
        (made / f"{name}.yaml").write_text(text)
    return made


def rows(path, kept=("index", "predict", "radius", "counts", "guarantee", "consensus")):
    return [{key: row[key] for key in kept} for row in load_run(path).rows()]


@pytest.mark.parametrize("kind", FILES)
def test_a_file_certifies_as_the_options_do(run, folder, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # paths in a file are relative to the file
    code, _, err = run("certify", folder / f"{kind}.yaml", *SMALL, "--run", "file")
    assert code == 0, err
    paths = {path.stem: path for path in folder.glob("*.safetensors")}
    options = [str(option).format(**paths) for option in OPTIONS[kind]]
    code, _, err = run("certify", *options, *SMALL, "--run", "options")
    assert code == 0, err
    assert rows("file") == rows("options")
    first, second = load_run("file"), load_run("options")
    assert first.config == second.config  # with the identity of the classifier and of all experts
    used = {path.name for path in paths.values() if path.name in FILES[kind]}
    recorded = str(first.info["sessions"][0]["source"])
    assert all(str(folder / name) in recorded for name in used)
    assert all(models.describe(folder / name).sha256 in recorded for name in used)


def test_a_moved_folder_continues_and_a_changed_part_does_not(run, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "one")
    command = [*SMALL, "--run", tmp_path / "run"]
    assert run("certify", tmp_path / "one" / "routed.yaml", *command)[0] == 0
    before = rows(tmp_path / "run")
    os.rename(tmp_path / "one", tmp_path / "two")
    code, _, err = run("certify", tmp_path / "two" / "routed.yaml", *command)
    assert code == 0, err
    assert rows(tmp_path / "run") == before
    shutil.copy(folder / "c.safetensors", tmp_path / "two" / "b.safetensors")
    code, _, err = run("certify", tmp_path / "two" / "routed.yaml", *command)
    assert code == 1, err
    assert "experts" in err


def test_python_loads_every_kind(folder):
    load = {name: models.load_model(folder / f"{name}.safetensors") for name in ("a", "b", "c", "two")}
    denoiser = models.load_denoiser(folder / "d.safetensors")
    x = torch.rand(3, 1, 8, 8)
    made = {
        "vote": Ensemble([load["a"], load["b"]], "weighted", [0.7, 0.3]),
        "consensus": Consensus([load["a"], load["b"], load["c"]], 2, margin=0.05),
        "denoised": Denoised(load["a"], denoiser),
    }
    for name, model in made.items():
        assert torch.equal(sc.load_model(folder / f"{name}.yaml")(x), model(x))
        assert sc.load_smoothed(folder / f"{name}.yaml").noise == Gaussian(0.25)
    for name in ("routed", "aces"):
        with pytest.raises(sc.SmoothcertError, match=rf"is a {name} classifier, not one model; use smoothcert.load_sm"):
            sc.load_model(folder / f"{name}.yaml")
    digits = data.load("digits")[0][0]
    routed = sc.load_smoothed(folder / "routed.yaml", grid=256, runtime="eager")
    assert [expert.noise for expert in routed.experts] == [Gaussian(0.25, grid=256)] * 2
    assert routed.certify(digits, Cohen(n=100), seed=0).guarantee == "routed"
    aces = sc.load_smoothed(folder / "aces.yaml", Gaussian(0.5), runtime="eager")
    assert isinstance(aces.procedure, Aces)
    assert (aces.procedure.theta, aces.noise) == (0.9, Gaussian(0.5))
    aces.procedure = Aces(core=aces.procedure.core, selector=aces.procedure.selector, theta=0.9, n=100)
    assert aces.certify(digits, seed=0).routing.core is not None
    assert 0 < aces.predict(digits, seed=0).n <= 100


def test_files_and_compositions_can_be_parts(run, folder, tmp_path):
    for name in ("vote.yaml", "a.safetensors", "b.safetensors", "c.safetensors", "d.safetensors"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "outer.yaml").write_text(
        "kind: consensus\nfirst: 1\nmembers:\n  - ../vote.yaml\n"
        "  - {kind: denoised, model: ../vote.yaml, denoiser: ../d.safetensors}\n"
    )
    vote = sc.load_model(tmp_path / "vote.yaml")
    expected = Consensus([vote, Denoised(vote, models.load_denoiser(tmp_path / "d.safetensors"))], 1)
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(sc.load_model(tmp_path / "inner" / "outer.yaml")(x), expected(x))
    code, out, err = run("info", tmp_path / "inner" / "outer.yaml")
    assert code == 0, err
    assert out.startswith("kind: consensus\n")
    assert out.count("a.safetensors") == 2
    assert "\n  denoiser:\n    checkpoint: " in out
    options = ["--first", 1, "--run", tmp_path / "run"]
    code, _, err = run("certify", tmp_path / "vote.yaml", tmp_path / "c.safetensors", *SMALL, *options)
    assert code == 0, err


@pytest.mark.parametrize("kind", ["routed", "aces", "consensus"])
def test_other_commands(run, folder, tmp_path, kind):
    file = folder / f"{kind}.yaml"
    code, out, err = run("predict", file, "--data", "digits", "--votes", 100, "--stop", 2)
    assert (code, len(out.splitlines())) == (0, 3), err
    code, out, err = run("info", file)
    assert code == 0, err
    assert f"kind: {kind}" in out
    code, _, err = run("doctor", file, "--data", "digits", "--n", 100, "--stop", 20, "--seconds", 2)
    assert ("examine its selector" in err) == (kind == "routed"), err
    assert code == (2 if kind == "routed" else 1)  # the models are not trained
    code, _, err = run("attack", file, "--data", "digits", "--radii", 0.1, "--stop", 1, "--n", 100, "--votes", 100)
    assert (code == 0) == (kind == "consensus"), err
    if kind == "aces":
        assert "attack its smoothed classifier" in err
        options = ["--types", "fog", "--every", 200, "--n", 100, "--run", tmp_path / "suite"]
        assert run("corruptions", "run", file, "--data", "digits", *options)[0] == 0


def test_a_cluster_gets_the_classifier_of_a_file(run, folder, tmp_path, monkeypatch):
    from smoothcert.cli import certify

    seen = {}

    def stop(smoothed, dataset, procedure, **options):
        seen.update(options, smoothed=smoothed, procedure=procedure)
        raise sc.SmoothcertError("seen")

    monkeypatch.setattr(certify, "certify_dataset", stop)
    assert run("certify", folder / "aces.yaml", *SMALL, "--ray", "auto", "--run", tmp_path / "run")[0] == 1
    assert seen["cluster"].address == "auto"
    assert seen["procedure"].core is not None
    assert seen["smoothed"].for_workers().procedure is None


def test_ensemble_writes_what_it_found(run, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    command = ["ensemble", "a.safetensors", "b.safetensors", folder / "c.safetensors", "--data", "digits"]
    command += ["--every", 60, "--copies", 5]
    for options, kind in (
        ([], sc.Consensus),
        (["--vote", "weighted"], sc.Ensemble),
    ):
        file = tmp_path / "found.yaml"
        code, out, err = run(*command, *options, "-o", file)
        assert code == 0, err
        model = sc.load_model(file)
        assert isinstance(model, kind)
        order = [line.split()[-1] for line in out.splitlines()[1:4]]
        parts = [models.load_model(name) for name in order]
        x = torch.rand(2, 1, 8, 8)
        assert all(torch.equal(part(x), again(x)) for part, again in zip(model.parts(), parts, strict=True))
        shown = [float(line.split()[1]) for line in out.splitlines()[1:4]]
        assert model.shares == pytest.approx(shown if kind is sc.Ensemble else [1 / 3] * 3, abs=1e-3)
        assert f"smoothcert certify {file} --data digits" in out
    assert str(folder / "c.safetensors") in file.read_text()  # absolute, as it was given
    assert os.path.relpath(folder / "a.safetensors", tmp_path) in file.read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: ensemble\nmembers: [a.safetensors, x.yaml]", "x.yaml: x.yaml: the file includes itself"),
        ("kind: ensembel\nmembers: [a]", "did you mean 'ensemble'"),
        ("members: [a]", "begins with 'kind: '"),
        ("- a", "begins with 'kind: '"),
        ("kind: ensemble\nmembers: [a, b]\nvotes: soft", "unknown setting 'votes'; did you mean 'vote'"),
        ("kind: ensemble\nmembers: [a]", "members must have at least 2 items"),
        ("kind: ensemble", "members is missing"),
        ("kind: ensemble\nmembers: [a, 3]", "members[2] must be a model's specifier, or a composition of the kind"),
        ("kind: ensemble\nmembers: [a, {kind: aces}]", "members[2] must be a model's specifier"),
        ("kind: ensemble\nmembers: [a, {kind: denoised, denoiser: d}]", "members[2].model is missing"),
        ("kind: ensemble\nmembers: [a.safetensors, gone.safetensors]", "there is no checkpoint at"),
        (f"kind: ensemble\nmembers: [{'a' * 300}, b]", "cannot be read (File name too long)"),
        ("kind: ensemble\nmembers: [~nobody0/a, b]", "unknown user"),
        ("kind: ensemble\nmembers: [a.safetensors, five.safetensors]", "same classes, but have [5, 10]"),
        ("kind: ensemble\nmembers: [a.safetensors, b.safetensors]\nvote: sof", "did you mean 'soft'"),
        ("kind: ensemble\nmembers: [a.safetensors, b.safetensors]\nweights: [1]", "1 weights for 2 members"),
        ("kind: ensemble\nmembers: [a.safetensors, aces.yaml]", "aces classifier cannot be a part of another"),
        ("kind: routed\nselector: two.safetensors\nexperts: [{}, {}]", "an expert is a model or a core"),
        ("kind: routed\nselector: a\nnoise: {name: gauss}\nexperts: [{core: a}, {core: a}]", "unknown noise 'gauss'"),
        ("kind: routed\nselector: a\nnoise: {name: gaussian, sigma: x}\nexperts: []", "sigma"),
        ("kind: aces\nmodel: a.safetensors\ntheta: 2", "theta"),
        ("kind: ensemble\nmembers: &m [a, b]", "anchors, aliases and tags are not allowed"),
        ("kind: denoised\nmodel: " + "{kind: denoised, denoiser: d, model: " * 25 + "a" + "}" * 25, "20 levels deep"),
        ("kind: ensemble\nmembers: [nets.py:small, torch.nn:Identity]", "'nets.py:small' may run code"),
        ("kind: ensemble\nmembers: ['torch.nn:Identity', a]", "'torch.nn:Identity' may run code"),
        ("kind: denoised\nmodel: a.safetensors\ndenoiser: nets.py:small", "'nets.py:small' may run code"),
        ("kind: ensemble\nmembers: ['a.pth,architecture=nets.py:small', b]", "may run code"),
        ("kind: ensemble\nmembers: ['http://127.0.0.1/v1', b]", "may run code or use the network"),
        ("kind: ensemble\nmembers: ['hf:google/vit', b]", "may run code or use the network"),
        ("kind: ensemble\nmembers: ['vit,attn_implementation=someone/kernel', b]", "may run code"),
    ],
)
def test_refused_files(run, folder, tmp_path, text, words):
    for name in ("a.safetensors", "b.safetensors", "two.safetensors", "five.safetensors", "d.safetensors", "aces.yaml"):
        os.link(folder / name, tmp_path / name)
    (tmp_path / "nets.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nsmall = None\n")
    (tmp_path / "x.yaml").write_text(text + "\n")
    code, out, err = run("certify", tmp_path / "x.yaml", *SMALL, "--run", tmp_path / "run")
    assert (code, out) == (1 if "too long" in words else 2, ""), err
    assert words in err.replace(f"{tmp_path}/", "")
    assert str(tmp_path / "x.yaml") in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("aces", ["--procedure", "cohen"], "for the procedure aces, not cohen"),
        ("aces", ["--theta", 0.5], "the file of the model has its theta"),
        ("vote", ["--normalize", "bytes"], "has no option normalize; write it in the file"),
        ("vote", ["--vote", "soft"], "--vote is for several members"),
        ("routed", ["--denoiser", "d.safetensors"], "routed classifier cannot be a part of another"),
    ],
)
def test_options_that_do_not_suit_a_file(run, folder, tmp_path, kind, options, words):
    code, out, err = run("certify", folder / f"{kind}.yaml", *SMALL, *options, "--run", tmp_path / "run")
    assert (code, out) == (2, ""), err
    assert words in err


def test_code_that_a_file_names_is_imported_if_the_user_trusts_it(run, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    shutil.copy(folder / "a.safetensors", tmp_path / "sub" / "w.safetensors")
    (tmp_path / "sub" / "trusted_nets.py").write_text(
        "from smoothcert import models\n\n\ndef small():\n    return models.build('digits-cnn')\n"
    )
    (tmp_path / "sub" / "x.yaml").write_text(
        "kind: ensemble\nmembers: [w.safetensors, 'trusted_nets.py:small,weights=w.safetensors']\n"
    )
    command = ["certify", "sub/x.yaml", *SMALL, "--sigma", 0.25, "--run", "run"]
    code, _, err = run(*command)
    assert code == 2
    assert "allow it by --trust (trust=True in Python)" in err
    code, _, err = run(*command, "--trust")
    assert code == 0, err
    x = torch.rand(2, 1, 8, 8)
    first, second = sc.load_model("sub/x.yaml", trust=True).parts()
    assert torch.equal(first(x), second(x))


def test_files_that_include_others_many_times_are_refused(folder, tmp_path):
    os.link(folder / "a.safetensors", tmp_path / "a.safetensors")
    below = "a.safetensors"
    for level in range(4):
        (tmp_path / f"{level}.yaml").write_text(f"kind: ensemble\nmembers: [{', '.join([below] * 20)}]\n")
        below = f"{level}.yaml"
    with pytest.raises(sc.SmoothcertError, match="8000 parts; at most 1000"):
        sc.load_model(tmp_path / "3.yaml")
    for level in range(12):
        (tmp_path / f"c{level}.yaml").write_text(
            f"kind: ensemble\nmembers: [a.safetensors, {f'c{level - 1}.yaml' if level else 'a.safetensors'}]\n"
        )
    sc.load_model(tmp_path / "c6.yaml")
    with pytest.raises(sc.SmoothcertError, match="more than 8 files include each other"):
        sc.load_model(tmp_path / "c11.yaml")

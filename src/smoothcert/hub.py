"""Share models on the Hugging Face hub, with a card that states what was certified; needs ``smoothcert[hf]``.

A folder holds ``model.safetensors``, ``config.json`` and the card ``README.md``; nothing is unpickled or executed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from smoothcert.certify import Smoothed
from smoothcert.classifiers.identity import model_identity
from smoothcert.files import parse_json, replacing
from smoothcert.models import CheckpointInfo, load_checkpoint, save_checkpoint
from smoothcert.models.checkpoints import fit, read_weights
from smoothcert.models.sources.huggingface import CONFIG, LIBRARY, WEIGHTS
from smoothcert.noise import Noise, noise_from_config
from smoothcert.report import table
from smoothcert.store import Run
from smoothcert.store.selection import select, take_shard, whole_selection
from smoothcert.types import CheckpointError, SmoothcertError, StrPath, UsageError

try:
    from huggingface_hub import ModelCardData, ModelHubMixin, hf_hub_download
except ImportError as _error:
    raise UsageError('smoothcert.hub needs huggingface_hub; pip install "smoothcert[hf]".') from _error


class HubModel(ModelHubMixin):  # type: ignore[misc]  # it has no types where it is not installed
    """A model to share on the Hugging Face hub, or one loaded from there.

    It has the methods ``save_pretrained(folder)``, ``push_to_hub(name)`` and ``from_pretrained(folder_or_name)``. The
    card is written again with each save, so that it is always about the saved weights.

    Args:
        model: The classifier, with its normalisation.
        info: The metadata of a registered architecture, such as ``load_checkpoint(path).info``. None for a module of
            your own, whose code is not saved: ``from_pretrained`` then needs ``architecture``.
        noise: The noise of the training; by default that of ``info``.
        dataset: The name of the training data; by default that of the recipe in ``info``.
        run: A finished run of this model, whose certified accuracy the card states.

    Raises:
        UsageError: If the run is unfinished or not about this model alone, or the noise is not that of ``info``.

    Example:
        >>> import tempfile
        >>> from smoothcert import Gaussian, models
        >>> model = HubModel(models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = model.save_pretrained(folder)
        ...     HubModel.from_pretrained(folder).noise
        Gaussian(sigma=0.25)
    """

    def __init__(
        self,
        model: nn.Module,
        info: CheckpointInfo | None = None,
        *,
        noise: Noise | None = None,
        dataset: str | None = None,
        run: Run | None = None,
    ) -> None:
        recorded = None if info is None else _recorded_noise(info)
        if noise is not None and recorded is not None and _scale(noise) != _scale(recorded):
            raise UsageError(f"the model was trained with {recorded}, but noise is {noise}; leave out noise.")
        if run is not None:
            _refuse_other(run, model)
        recipe = {} if info is None else info.extra.get("recipe")
        named = recipe.get("dataset") if isinstance(recipe, Mapping) else None
        self.model = model
        self.info = info
        self.noise = noise or recorded
        self.dataset = dataset or (named if isinstance(named, str) else None)
        self.run = run

    def smoothed(self, noise: Noise | None = None, **options: Any) -> Smoothed:
        """Return the smoothed classifier.

        Args:
            noise: The noise; by default that of the training.
            **options: Arguments of ``Smoothed``.
        """
        chosen = noise or self.noise
        if chosen is None:
            raise UsageError("the noise of the training is unknown; give a noise, such as Gaussian(0.25).")
        if self.info is not None:
            options = {"input_range": self.info.input_range, **options}
        return Smoothed(self.model, chosen, **options)

    def card(self) -> str:
        """Return the text of the card."""
        tags = ["certified-robustness", "randomized-smoothing"]
        metadata = ModelCardData(library_name=LIBRARY, pipeline_tag="image-classification", tags=tags)
        info, name = self.info, type(self.model).__name__
        facts = {
            "Architecture": f"`{name}`, which is not part of smoothcert" if info is None else info.architecture,
            "Training data": self.dataset or "unknown",
            "Training noise": f"`{self.noise}`" if self.noise is not None else "unknown",
        }
        if info is not None:
            facts["Input"] = f"{' × '.join(map(str, info.input_shape))}, values from {info.input_range[0]:g} to " + (
                f"{info.input_range[1]:g}, normalised by the model" if info.normalize else f"{info.input_range[1]:g}"
            )
            facts["Classes"] = str(info.num_classes)
        lines = ["---", metadata.to_yaml(), "---", "", "# A classifier for randomized smoothing", ""]
        lines += [f"- {what}: {value}" for what, value in facts.items()]
        own = "" if info is not None else f", architecture={name}"
        lines += ["", "```python", "from smoothcert.hub import HubModel", ""]
        lines += [f'model = HubModel.from_pretrained("FOLDER_OR_NAME"{own})', "smoothed = model.smoothed()"]
        lines += ["certificate = smoothed.certify(x)", "```"]
        return "\n".join([*lines, *([] if self.run is None else self._results(self.run)), ""])

    def _results(self, run: Run) -> list[str]:
        """Return the lines of the card about a run."""
        config = run.config
        settings = {name: value for name, value in config["procedure"].items() if name != "name" and value is not None}
        procedure = ", ".join(f"{name} = {value}" for name, value in settings.items())
        data = " ".join(str(config["data"][name]) for name in ("name", "split") if config["data"][name])
        lines = ["", "## Certified accuracy", ""]
        lines += [
            f"Of the smoothed classifier on {len(run)} inputs of {data}, with `{run.settings.build_noise()}`, by "
            f"{config['procedure']['name']} ({procedure}). In brackets: 95 % intervals over the test sample.",
            "",
            table(run, intervals=True, marks=False).rstrip(),
        ]
        command = _command(run, None if self.info is not None else type(self.model).__name__)
        if command is not None:
            lines += ["", "To certify the same inputs with the same noise, in this folder:", "", "```bash", command]
            lines += ["```"]
        return lines

    def _save_pretrained(self, save_directory: Path) -> None:
        weights = save_directory / WEIGHTS
        if self.info is not None:
            save_checkpoint(weights, self.model, self.info)
        else:
            state = {name: tensor.detach().cpu() for name, tensor in self.model.state_dict().items()}
            checked = fit(self.model, state, "the model")
            with replacing(weights) as temporary:
                temporary.write_bytes(safetensors.torch.save(checked))
        settings = {
            "version": version("smoothcert"),
            "architecture": None if self.info is None else self.info.architecture,
            "class": type(self.model).__name__,
            "noise": None if self.noise is None else self.noise.config(),
            "dataset": self.dataset,
        }
        config = json.dumps({"library_name": LIBRARY, LIBRARY: settings}, indent=2)
        for name, text in ((CONFIG, config), ("README.md", self.card())):
            with replacing(save_directory / name) as temporary:
                temporary.write_text(text, encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls,
        name: StrPath,
        *,
        architecture: nn.Module | Callable[[], nn.Module] | None = None,
        **options: Any,
    ) -> HubModel:
        """Load a model from a folder or from the hub.

        Args:
            name: The folder, or the name on the hub.
            architecture: For a module of your own: the module, or a class or function without arguments that makes it.
            **options: Other arguments of ``huggingface_hub.ModelHubMixin.from_pretrained``, such as ``revision``.

        Raises:
            CheckpointError: If the files are missing, damaged, or do not match the architecture.
            UsageError: If ``architecture`` is needed or not needed.
        """
        try:
            found: HubModel = super().from_pretrained(str(name), architecture=architecture, **options)
        except SmoothcertError:
            raise
        except Exception as error:  # the hub and files fail in many ways
            said = str(error).strip().partition("\n")[0].rstrip(".")
            raise CheckpointError(f"'{name}' is not a model that can be loaded: {said}.") from error
        return found

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        architecture: nn.Module | Callable[[], nn.Module] | None = None,
        revision: str | None = None,
        cache_dir: StrPath | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        **ignored: Any,  # keys of config.json that are named like arguments
    ) -> HubModel:
        if Path(model_id).is_dir():
            weights, config = Path(model_id) / WEIGHTS, Path(model_id) / CONFIG
        else:
            options: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir, "force_download": force_download}
            options |= {"local_files_only": local_files_only, "token": token}
            weights, config = (Path(hf_hub_download(model_id, name, **options)) for name in (WEIGHTS, CONFIG))
        settings = _settings(config)
        own = settings.get("architecture") is None
        if own != (architecture is not None):
            need = f"{settings.get('class')}, a module of somebody's own code; give" if own else "registered; leave out"
            raise UsageError(f"the architecture of '{model_id}' is {need} architecture.")
        noise, dataset = _noise(settings, config), settings.get("dataset")
        dataset = dataset if isinstance(dataset, str) else None
        if architecture is None:
            checkpoint = load_checkpoint(weights)
            return cls(checkpoint.model, checkpoint.info, noise=noise, dataset=dataset)
        model = architecture if isinstance(architecture, nn.Module) else architecture()
        if not isinstance(model, nn.Module):
            raise UsageError(f"architecture must make a torch.nn.Module, got {type(model).__name__}.")
        tensors, _ = read_weights(weights)
        model.load_state_dict(fit(model, tensors, f"'{weights}' as {type(model).__name__}"))
        return cls(model.eval(), noise=noise, dataset=dataset)


def _settings(config: Path) -> Mapping[str, Any]:
    try:
        found = parse_json(config.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{config} cannot be read: {error}.") from error
    settings = found.get(LIBRARY) if isinstance(found, dict) else None
    if not isinstance(settings, dict):
        raise CheckpointError(f"{config} is not of a model that smoothcert saved; load it with load_model.")
    return settings


def _noise(settings: Mapping[str, Any], config: Path) -> Noise | None:
    noise = settings.get("noise")
    if noise is None:
        return None
    try:
        return noise_from_config(noise)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{config} names an invalid noise: {error}") from error


def _recorded_noise(info: CheckpointInfo) -> Noise | None:
    config = info.noise or ({"name": "gaussian", "sigma": info.sigma} if info.sigma else None)
    return None if config is None else noise_from_config(config)


def _scale(noise: Noise) -> dict[str, Any]:
    """Return the noise without its grid, which does not matter to training."""
    return {name: value for name, value in noise.config().items() if name != "grid"}


def _refuse_other(run: Run, model: nn.Module) -> None:
    """Refuse a run whose numbers are not about this model, or not final."""
    config = run.config
    if config["kind"] != "certification":
        raise UsageError(f"{run.path} is of kind {config['kind']}, which does not record its model; certify again.")
    identity, there = model_identity(model), config["model"]
    if {name: identity.get(name) for name in there} != there:
        raise UsageError(f"{run.path} is about another model, so its numbers are not those of this one.")
    if run.settings.composed or not run.settings.one_noise:
        raise UsageError(f"{run.path} was made with other models or a chosen sigma; give a run of this model alone.")
    indices = select(config["data"]["size"], **whole_selection(config))
    shard = config["inputs"].get("shard")
    total = len(indices if shard is None else take_shard(indices, *shard))
    if len(run) != total:
        raise UsageError(f"{run.path} has {len(run)} of {total} inputs; finish it first.")


def _command(run: Run, own: str | None) -> str | None:
    """Return the command that repeats a run in the folder of its model; None if options cannot say how it was made."""
    config, sources = run.config, [each.get("source") or {} for each in run.sessions]
    shared = any("simultaneous" in source for source in sources)
    if shared or config["seed"] is None or any(isinstance(each, Mapping) for each in config["procedure"].values()):
        return None
    options: dict[str, Any] = {"data": config["data"]["name"], "split": config["data"]["split"]}
    noise = dict(config["noise"])
    options |= {"noise": noise.pop("name")}
    arithmetic = [] if options["noise"] == "discrete" else ["--exact" if noise.pop("grid", None) else "--float"]
    options |= noise | {"procedure": config["procedure"]["name"]}
    options |= {name: value for name, value in config["procedure"].items() if name != "name"}
    inputs = dict(config["inputs"])
    shard = inputs.pop("shard", None)
    options |= inputs | {"shard": None if shard is None else f"{shard[0]}/{shard[1]}"}
    options |= {"seed": config["seed"], "precision": config["precision"]}
    words = ["smoothcert", "certify", "." if own is None else f".,architecture=MODULE:{own}", *arithmetic]
    for name, value in options.items():
        if value is not None:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return shlex.join(words)

"""``run.json``: the configuration and the sessions of a run, with a checksum.

Parts and pending rows carry a digest of their configuration. So where ``run.json`` is lost or damaged, the same command
can continue with the rows that are there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from smoothcert.files import parse_json, replacing
from smoothcert.noise import Noise, noise_from_config
from smoothcert.store import pending
from smoothcert.store.parts import part_config, parts_of
from smoothcert.store.pending import read_pending
from smoothcert.types import RunError, UsageError, wrong_path

NAME = "run.json"
FORMAT = 1
VOTES = "votes"
"""The kind of a run that holds votes without certificates: soft labels, or decisions of a black-box classifier."""

REQUESTS = "requests to a server"
"""The name of the data of a run that a server recorded: true classes are unknown, and each answer counts as correct."""

Count = Annotated[int, Field(gt=0, lt=2**63)]
Position = Annotated[int, Field(ge=0, lt=2**63)]
Whole = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Probability = Annotated[float, Field(gt=0, le=1)]  # 1 for votes, which prove nothing


class _Settings(BaseModel):
    """Settings of a run; keys without a field are kept."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as they were written."""
        return self.model_dump(exclude_unset=True)


class ProcedureSettings(_Settings):
    name: str | None = None
    norm: str | None = None
    n: Count | None = None
    n0: Count | None = None
    alpha: Probability | None = None
    bound: str | None = None  # None: plain


class NoiseSettings(_Settings):
    name: str | None = None
    sigma: float | None = None
    lam: float | None = None
    keep: float | None = None
    grid: Whole | None = None
    levels: Whole | None = None


class StreamSettings(_Settings):
    """How noise was drawn."""

    block: Any = None
    device: str | None = None


class DataSettings(_Settings):
    name: str | None = None
    split: str | None = None
    size: Count | None = None
    sha256: str | None = None


class InputSettings(_Settings):
    """Which inputs of the dataset were certified."""

    every: Count | None = None
    start: Position | None = None
    stop: Position | None = None
    shard: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None

    @field_validator("every", "start")
    @classmethod
    def _is_number(cls, value: int | None) -> int | None:
        """Refuse null; a field that is missing is not validated."""
        if value is None:
            raise ValueError("Input should be a number")
        return value


class RunSettings(_Settings):
    """The configuration of a run; imported logs and earlier versions lack some fields."""

    kind: str  # "certification", "votes", or "imported" and the kind of a log
    name: Annotated[str, Field(min_length=1, max_length=1000)] | None = None  # that the import of a log was given
    procedure: ProcedureSettings = ProcedureSettings()
    noise: NoiseSettings | None = None  # with experts, that of the selector
    experts: list[dict[str, Any]] | None = None  # of a router
    sigma: dict[str, Any] | None = None  # how the noise scale of each input was chosen, where each input has one
    guarantee: str | None = None  # where it does not follow from the noise and the procedure
    stream: StreamSettings = StreamSettings()
    seed: Position | None = None  # None where shards had different ones
    num_classes: Count | None = None  # of a router, the number of experts
    data: DataSettings | None = None
    inputs: InputSettings = InputSettings()
    plugins: dict[str, str] = {}  # the origin of each part that a plug-in defines

    @property
    def certified(self) -> bool:
        """Whether smoothcert certified it, and it is not an imported log."""
        return self.kind == "certification"

    @property
    def fixed_samples(self) -> bool:
        """Whether every input got the same number of samples, so that its votes can be evaluated again."""
        return self.procedure.name == "cohen"

    @property
    def composed(self) -> bool:
        """Whether the rows are those of ACES."""
        return self.procedure.name == "aces"

    @property
    def one_noise(self) -> bool:
        """Whether all inputs had the same noise."""
        return self.sigma is None and self.experts is None

    def build_noise(self, config: Mapping[str, Any] | None = None) -> Noise | None:
        """Build the noise, or that of an expert's configuration."""
        if config is None and self.noise is not None:
            config = self.noise.as_dict()
        if config is None:
            return None
        noise = noise_from_config(config)
        if not self.plugins:
            return noise
        from smoothcert.classifiers.identity import code_origins  # imports PyTorch

        for part, here in code_origins(noise).items():
            if self.plugins.get(part, here) != here:
                raise UsageError(
                    f"the {part} of the run is that of {self.plugins[part]}, but the one here is that of {here}; use "
                    "the same plug-in."
                )
        return noise


def parse_settings(config: Mapping[str, Any], folder: Path) -> RunSettings:
    """Read the configuration of a run; refuse settings of a type that no version writes."""
    try:
        return RunSettings.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise RunError(
            f"{folder / NAME} is damaged: {name}: {first['msg'].lower()}; restore it, or choose another run folder."
        ) from error


def read_info(folder: Path) -> dict[str, Any]:
    """Read a run folder's ``run.json``, without the checksum."""
    file = folder / NAME
    if not file.is_file():
        raise wrong_path(RunError(f"{folder} is not a run folder: it has no run.json."))
    try:
        text = file.read_text(encoding="utf-8")
        info = parse_json(text)
        version = int(info["format"])
        if not isinstance(info["config"]["kind"], str):
            raise TypeError("its config has no kind")
        rest = {key: value for key, value in info.items() if key != "sha256"}
        damage = ""
        if "sha256" in info and _info_text(rest) != text:  # files of earlier versions have no checksum
            damage = "its checksum differs"
        if unknown := rest.keys() - {"format", "config", "sessions"}:
            damage = f"it has an unknown entry {min(unknown)}"
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged_info(folder, str(error)) from error
    if version > FORMAT:
        doubt = ", or its run.json is damaged" if damage else ""
        raise RunError(f"{folder} was written by a newer smoothcert (run format {version}){doubt}; update to read it.")
    if damage:
        raise _damaged_info(folder, damage)
    return rest


def write_info(folder: Path, config: Mapping[str, Any], sessions: Sequence[Any]) -> None:
    """Write ``run.json`` atomically."""
    with replacing(folder / NAME) as temporary:
        info = {"format": FORMAT, "config": config, "sessions": list(sessions)}
        temporary.write_text(_info_text(json.loads(json.dumps(info))), encoding="utf-8")


def config_digest(config: Mapping[str, Any]) -> str:
    """Hash a configuration; the hash is the same before and after it was stored."""
    return hashlib.sha256(json.dumps(json.loads(json.dumps(config)), sort_keys=True).encode()).hexdigest()


def rows_without_info(folder: Path, config: str) -> bool:
    """Return whether a folder without ``run.json`` has rows; refuse rows not known to be of this configuration."""
    owners = _owners(folder)
    for file, owner in owners.items():
        if owner != config:
            whose = "does not record its configuration" if owner is None else "belongs to another configuration"
            raise RunError(
                f"{folder} has no run.json, and {file.name} {whose}; choose another run folder, or delete {file} to "
                "compute its rows again."
            )
    return bool(owners)


def _owners(folder: Path) -> dict[Path, str | None]:
    """Read the digest of the configuration that each file with rows belongs to."""
    found = read_pending(folder)
    owners = {part: part_config(part) for part in parts_of(folder)}
    return owners | ({folder / pending.NAME: found.config} if found.rows else {})


def refuse_other_answers(folder: Path, there: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]]) -> None:
    """Refuse new sessions whose model has other logits for the same fixed inputs (``Sealed.probe``), beyond rounding.

    Sessions of earlier versions have no ``probe``.
    """
    try:
        probes = [session["probe"] for session in (*there, *here) if isinstance(session.get("probe"), list)]
        logits = [np.asarray(probe, dtype=np.float64)[:, 1:] for probe in probes]  # the top class may change in a tie
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise RunError(f"{folder / NAME} is damaged (a probe is not a table of numbers); restore it.") from error
    first = logits[0] if logits else np.empty((0, 2))
    allowed = 1e-2 * float(np.abs(first).max(initial=0.0))  # as far apart as runtimes and devices may be
    if not all(each.shape == first.shape and np.allclose(each, first, rtol=0, atol=allowed) for each in logits):
        raise RunError(
            f"the model returns other logits for the same inputs than when {folder} was started, though its weights "
            "and code are the same; find out what else it depends on, or choose another run folder."
        )


def _info_text(info: Mapping[str, Any]) -> str:
    """Write ``run.json`` as text; its last entry is the SHA-256 of the text without that entry."""
    plain = json.dumps(info, indent=2) + "\n"
    return json.dumps({**info, "sha256": hashlib.sha256(plain.encode()).hexdigest()}, indent=2) + "\n"


def _damaged_info(folder: Path, reason: str) -> RunError:
    try:
        known = None not in _owners(folder).values()
    except RunError:
        known = False
    advice = "restore it, or choose another run folder"
    if known:
        advice = "delete it and run the same command again, which keeps the rows"
    return RunError(f"{folder / NAME} is damaged ({reason}); {advice}.")

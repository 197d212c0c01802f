"""``run.json``: what was asked for and under which circumstances, with a checksum of its own.

Parts and pending rows carry a digest of the configuration they belong to. So where ``run.json`` is lost or damaged, the
same command can go on with the rows that are there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smoothcert.files import parse_json, replacing
from smoothcert.store import pending
from smoothcert.store.parts import part_config, parts_of
from smoothcert.store.pending import read_pending
from smoothcert.types import RunError

NAME = "run.json"
FORMAT = 1


def read_info(folder: Path) -> dict[str, Any]:
    """The content of a run folder's ``run.json``, without the checksum.

    Raises:
        RunError: If it is missing, damaged or of a newer version.
    """
    file = folder / NAME
    if not file.is_file():
        raise RunError(f"{folder} is not a run folder: it has no run.json.")
    try:
        text = file.read_text(encoding="utf-8")
        info = parse_json(text)
        version = int(info["format"])
        if not isinstance(info["config"]["kind"], str):
            raise TypeError("its config has no kind")
        damage = _info_damage(info, text)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged_info(folder, str(error)) from error
    if version > FORMAT:
        doubt = ", or its run.json is damaged" if damage else ""
        raise RunError(f"{folder} was written by a newer smoothcert (run format {version}){doubt}; update to read it.")
    if damage:
        raise _damaged_info(folder, damage)
    return {key: info[key] for key in info if key != "sha256"}


def write_info(folder: Path, config: Mapping[str, Any], sessions: Sequence[Any]) -> None:
    """Write ``run.json``, whole or not at all.

    Raises:
        OSError: If it cannot be written.
    """
    with replacing(folder / NAME) as temporary:
        info = {"format": FORMAT, "config": config, "sessions": list(sessions)}
        temporary.write_text(_info_text(json.loads(json.dumps(info))), encoding="utf-8")


def config_digest(config: Mapping[str, Any]) -> str:
    """A fingerprint of a configuration, the same before and after it was stored."""
    return hashlib.sha256(json.dumps(json.loads(json.dumps(config)), sort_keys=True).encode()).hexdigest()


def refuse_strangers(folder: Path, config: str) -> bool:
    """Whether rows outlived the loss of ``run.json``; refused are those not known to be of this configuration.

    Raises:
        RunError: If a file is damaged, or not known to belong to the configuration.
    """
    found = read_pending(folder)
    owners = {part: part_config(part) for part in parts_of(folder)}
    if found.rows:
        owners[folder / pending.NAME] = found.config
    for file, owner in owners.items():
        if owner != config:
            whose = "does not tell its configuration" if owner is None else "belongs to another configuration"
            raise RunError(
                f"{folder} has no run.json, and {file.name} {whose}; choose another run folder, or delete {file} to "
                "compute its rows anew."
            )
    return bool(owners)


def _info_text(info: Mapping[str, Any]) -> str:
    """The content of ``run.json``: its last entry is the SHA-256 of the others as they would be written alone."""
    plain = json.dumps(info, indent=2) + "\n"
    return json.dumps({**info, "sha256": hashlib.sha256(plain.encode()).hexdigest()}, indent=2) + "\n"


def _info_damage(info: dict[str, Any], text: str) -> str | None:
    """What is wrong with ``run.json``, if anything; files of earlier versions have no checksum."""
    rest = {key: value for key, value in info.items() if key != "sha256"}
    unknown = rest.keys() - {"format", "config", "sessions"}
    if unknown:
        return f"it has an unknown entry {min(unknown)}"
    return "its checksum differs" if "sha256" in info and _info_text(rest) != text else None


def _damaged_info(folder: Path, why: str) -> RunError:
    try:
        known = {part_config(part) for part in parts_of(folder)}
        found = read_pending(folder)
        known |= {found.config} if found.rows else set()
    except RunError:
        known = {None}
    way = "restore it, or certify into another folder"
    if None not in known:
        way = "delete it and run the same certify command again, which keeps the rows"
    return RunError(f"{folder / NAME} is damaged ({why}); {way}.")

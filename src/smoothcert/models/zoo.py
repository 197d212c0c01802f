"""The model zoo: models with their cards and runs, in a folder or at an address, with an index of their checksums."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pooch
import requests
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from smoothcert.files import parse_json, replacing
from smoothcert.types import CheckpointError, StrPath, UsageError, unknown_name

VARIABLE = "SMOOTHCERT_ZOO"
"""The environment variable with the folder or address of the zoo."""

INDEX, MODEL, CARD = "index.json", "model.safetensors", "card.json"
"""The index; in the folder of each model, which is also the folder of its run: its weights and its card."""

_CHECKOUT = Path(__file__).parents[3] / "zoo"
_TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 16
_LARGEST_INDEX, _LARGEST_FILE = 1 << 22, 1 << 28  # bytes that a server can make us download
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


class ZooFile(BaseModel):
    """A file of a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(ge=0, le=_LARGEST_FILE)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @classmethod
    def of(cls, content: bytes) -> ZooFile:
        """Describe a content."""
        return cls(size=len(content), sha256=hashlib.sha256(content).hexdigest())


class ZooIndex(BaseModel):
    """The files of each model, by the name of the model and the path in its folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    models: dict[str, dict[str, ZooFile]]

    @field_validator("models")
    @classmethod
    def _plain_names(cls, models: dict[str, dict[str, ZooFile]]) -> dict[str, dict[str, ZooFile]]:
        for name, files in models.items():
            for part in (name, *(part for file in files for part in file.split("/"))):
                if not _NAME.fullmatch(part) or part.endswith("."):
                    raise ValueError(f"{part!r} is not a plain name")
            if missing := {MODEL, CARD} - files.keys():
                raise ValueError(f"{name} has no {min(missing)}")
        return models


class Zoo:
    """A zoo in a folder or at an ``https`` address.

    Every file is compared with its checksum in the index each time it is used. Files of an address are kept in a cache.

    Args:
        place: The folder or address; by default ``$SMOOTHCERT_ZOO``, or the folder ``zoo`` of the checkout that
            smoothcert is installed from.
        cache: The folder of the cache; by default in the user's cache.

    Raises:
        UsageError: If there is no default, or the address is not ``https``.

    Example:
        >>> Zoo("https://example.org/zoo/")
        Zoo('https://example.org/zoo')
    """

    def __init__(self, place: StrPath | None = None, *, cache: StrPath | None = None) -> None:
        found = str(place or os.environ.get(VARIABLE) or "")
        if not found:
            if not (_CHECKOUT / INDEX).is_file():
                raise UsageError(
                    f"smoothcert is not installed from a checkout with a zoo; name the zoo's folder or address with "
                    f"--zoo or in ${VARIABLE}."
                )
            found = str(_CHECKOUT)
        if "://" in found and not found.startswith("https://"):
            raise UsageError(f"the address of a zoo begins with https://, not as {found!r}.")
        self.place = found.rstrip("/") or "/"
        self._cache = Path(cache or pooch.os_cache("smoothcert") / "zoo").expanduser()

    def __repr__(self) -> str:
        return f"Zoo({self.place!r})"

    @cached_property
    def index(self) -> ZooIndex:
        """The index.

        Raises:
            CheckpointError: If it is missing or invalid.
        """
        try:
            return ZooIndex.model_validate(parse_json(self._read(INDEX, _LARGEST_INDEX)))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except ValueError as error:
            reason = str(error)
        raise CheckpointError(f"{self.place}/{INDEX} is not the index of a zoo ({reason}).")

    def names(self) -> list[str]:
        """List the models in alphabetical order."""
        return sorted(self.index.models)

    def file(self, name: str, file: str = MODEL) -> Path:
        """Return a file of a model, checked.

        Raises:
            UsageError: If there is no such model.
            CheckpointError: If the file is missing, or is not the one in the index.
        """
        wanted = self._files(name)[file]
        if not self._remote:
            self._checked(self._read(f"{name}/{file}", wanted.size), wanted, f"{name}/{file}")
            return Path(self.place).expanduser() / name / file
        kept = self._cache / wanted.sha256[:2] / wanted.sha256 / Path(file).name
        if not kept.is_file() or ZooFile.of(kept.read_bytes()) != wanted:
            content = self._checked(self._read(f"{name}/{file}", wanted.size), wanted, f"{name}/{file}")
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as temporary:
                temporary.write_bytes(content)
        return kept

    def get(self, name: str) -> Path:
        """Check all files of a model, and return its weights; errors are as in :meth:`file`."""
        return {file: self.file(name, file) for file in self._files(name)}[MODEL]

    def card(self, name: str) -> dict[str, Any]:
        """Return the card of a model; errors are as in :meth:`file`."""
        found = parse_json(self.file(name, CARD).read_bytes())
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.place}/{name}/{CARD} is not a card.")
        return found

    def copy(self, name: str, folder: StrPath) -> Path:
        """Copy all files of a model to a folder, which is then a zoo too, and return the folder of the model.

        Raises:
            CheckpointError: As in :meth:`file`; or if the folder has another index, or cannot be written.
        """
        target = Path(folder)
        index = Zoo(target).index.models if (target / INDEX).exists() else {}
        try:
            for file in self._files(name):
                content = self.file(name, file).read_bytes()
                (target / name / file).parent.mkdir(parents=True, exist_ok=True)
                with replacing(target / name / file) as temporary:
                    temporary.write_bytes(content)
            write_index(ZooIndex(models={**index, name: self._files(name)}), target)
        except OSError as error:
            raise CheckpointError(f"{target} cannot be written ({error.strerror}).") from error
        return target / name

    @property
    def _remote(self) -> bool:
        return "://" in self.place

    def _files(self, name: str) -> dict[str, ZooFile]:
        if name not in self.index.models:
            raise unknown_name("model of the zoo", name, self.index.models)
        return self.index.models[name]

    def _checked(self, content: bytes, wanted: ZooFile, what: str) -> bytes:
        if ZooFile.of(content) != wanted:
            raise CheckpointError(
                f"{self.place}/{what} is not the file in the index of the zoo: its SHA-256 is not {wanted.sha256}; "
                "restore it, or get it again."
            )
        return content

    def _read(self, file: str, most: int) -> bytes:
        """Read at most one byte more than is wanted."""
        try:
            if not self._remote:
                with (Path(self.place).expanduser() / file).open("rb") as opened:
                    return opened.read(most + 1)
            return b"".join(_download(f"{self.place}/{file}", most))
        except OSError as error:  # that of requests too
            raise CheckpointError(
                f"{self.place}/{file} cannot be read ({error.strerror or type(error).__name__}); check the place of "
                "the zoo."
            ) from error


def _download(url: str, most: int) -> Iterator[bytes]:
    with requests.get(url, stream=True, timeout=_TIMEOUT_SECONDS, headers={"Accept-Encoding": "identity"}) as response:
        if not response.url.startswith("https://"):
            raise CheckpointError(f"{url} leads to {response.url}, which is not https.")
        if not response.ok:
            raise CheckpointError(f"{url} cannot be read: status {response.status_code}.")
        received = 0
        for chunk in response.iter_content(_CHUNK):
            received += len(chunk)
            yield chunk
            if received > most:
                return


def write_index(index: ZooIndex, folder: Path) -> None:
    """Write the index of a folder."""
    with replacing(folder / INDEX) as temporary:
        temporary.write_text(index.model_dump_json(indent=2) + "\n", encoding="utf-8")

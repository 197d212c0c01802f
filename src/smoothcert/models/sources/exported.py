"""Programs exported from PyTorch: TorchScript and ``torch.export`` (``.pt2``)."""

from __future__ import annotations

import copy
import hashlib
import io
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.files import parse_json
from smoothcert.models.checkpoints import find_checkpoint, read_file
from smoothcert.models.foreign import unpickle
from smoothcert.models.loaded import LoadedModel
from smoothcert.models.sources.batches import FixedBatch
from smoothcert.types import CheckpointError, UsageError

_FUNCTIONS = "Symbol|Integer|Rational|Add|Mul|Pow|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv"
_EXPRESSION = re.compile(
    rf"(?:\b(?:{_FUNCTIONS})\(|'\w+'|\b(?:positive|nonnegative|integer|real)=(?:True|False)|\b[su]\d+\b|[\d\s+*/(),<>=-])*"
)
"""Sizes, which PyTorch evaluates: symbols, numbers, operators and a few functions."""


def is_program(path: Path) -> str | None:
    """Return ``"torchscript"`` or ``"export"`` for a program, None for any other file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile):
        return None
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return "torchscript"
    return "export" if any(name.startswith("models/") and name.endswith(".json") for name in names) else None


class Program(nn.Module):
    """An exported program, with the hash of its file as a part of its identity."""

    def __init__(self, program: nn.Module, sha256: str) -> None:
        super().__init__()
        self.program, self.sha256 = program, sha256

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.program(x)
        return logits

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        with warnings.catch_warnings():  # of PyTorch, about how it copies its own graphs
            warnings.simplefilter("ignore", FutureWarning)
            return Program(copy.deepcopy(self.program, memo), self.sha256)

    def train(self, mode: bool = True) -> Program:
        """Change nothing: the mode of a program was fixed when it was exported."""
        self.training = False
        return self


def _refuse_code(content: bytes, source: str) -> None:
    """Refuse an archive of ``torch.export`` with anything that PyTorch would unpickle or evaluate when it loads it."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names):
            raise CheckpointError(f"{source} holds a file twice.")
        for name in names:
            if name.endswith(".pt"):
                unpickle(archive.read(name), f"{name} in {source}")
            if name.endswith(".json"):
                for key, value in _entries(parse_json(archive.read(name))):
                    if key == "path_name" and not str(value).startswith(("weight_", "tensor_")):
                        raise CheckpointError(f"{source} holds a pickled object, {value}; export the model without it.")
                    if key == "use_pickle" and value:
                        raise CheckpointError(f"{source} holds pickled tensors; export the model with plain ones.")
                    if key == "expr_str" and not _EXPRESSION.fullmatch(str(value)):
                        raise CheckpointError(f"{source} holds an expression that is not a size, {str(value)[:40]!r}.")


def _entries(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value in a JSON tree."""
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield from each.items()
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def load_program(text: str, options: Mapping[str, Any]) -> LoadedModel:
    """Load a TorchScript file or a program of ``torch.export``; no pickled object is created.

    A program can do what the operations of PyTorch can do, so load those that you trust.

    A program for one batch size is run in batches of that size.

    Raises:
        CheckpointError: The file is missing, damaged, or made for another version or device.
    """
    if options:
        raise UsageError(f"an exported program has no option {', '.join(sorted(options))}; leave it out.")
    path = find_checkpoint(Path(text).expanduser())
    content = read_file(path)
    kind, sha256, batch = is_program(path), hashlib.sha256(content).hexdigest(), None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but files of it exist
            if kind == "torchscript":
                program = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()  # type: ignore[no-untyped-call]
            else:
                _refuse_code(content, f"'{path}'")
                exported = torch.export.load(io.BytesIO(content))
                first = exported.graph_signature.user_inputs[0]
                shape = next(node for node in exported.graph.nodes if node.name == first).meta["val"].shape
                batch = shape[0] if isinstance(shape[0], int) else None
                program = exported.module()
    except CheckpointError:
        raise
    except Exception as error:  # the readers raise many classes
        said = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"'{path}' cannot be loaded as an exported program: {said}.") from error
    model: nn.Module = Program(program, sha256)
    model = model if batch is None else FixedBatch(model, batch)
    return LoadedModel(model=model.eval(), name=path.stem, source={"checkpoint": str(path), "sha256": sha256})

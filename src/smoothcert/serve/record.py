"""Record every answer of a service in run folders, before it is sent."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smoothcert.certify.inputs import CheckedInput
from smoothcert.evaluate.certification import run_config
from smoothcert.evaluate.driver import session_facts
from smoothcert.noise import noise_from_config
from smoothcert.serve.answers import Json
from smoothcert.serve.refusals import Refused
from smoothcert.store.rows import SCHEMA, Row, certificate_row
from smoothcert.store.run import RunWriter, open_run
from smoothcert.store.run_json import REQUESTS
from smoothcert.types import ABSTAIN, Certificate, Prediction, RunError, StrPath

if TYPE_CHECKING:
    from smoothcert.serve.service import Served


class Recorder:
    """Appends a row for every answer; the number of the row is the request's.

    Certificates go to the run folder that the operator names, in a folder for each model if there are several, and
    predictions, which prove no radius, to the folder ``…-predictions`` next to it.

    Args:
        path: The run folder.
        inputs: Whether to keep the inputs, as ``NUMBER.npy`` in the folder ``…-inputs``.
    """

    def __init__(self, path: StrPath, inputs: bool = False) -> None:
        self.path, self._inputs = Path(path), inputs
        self._writers: dict[tuple[str, bool], RunWriter] = {}
        self._next: dict[tuple[str, bool], int] = {}
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._closed = False

    def open(self, served: Mapping[str, Served]) -> None:
        """Create or continue the run folders.

        Raises:
            RunError: If a folder cannot be written, or is the record of another model or other settings.
        """
        with self._lock, ExitStack() as opened:
            for name, each in served.items():
                for predict in (False, True):
                    self._open(opened, name, each, predict, several=len(served) > 1)
            if self._inputs:
                self._inputs_folder.mkdir(parents=True, exist_ok=True)
            self._stack = opened.pop_all()

    def _open(self, stack: ExitStack, name: str, served: Served, predict: bool, several: bool) -> None:
        folder = self.path / name if several else self.path
        if predict:
            folder = folder.with_name(f"{folder.name}-predictions")
        smoothed = served.smoothed
        probe = CheckedInput(smoothed.check(served.probe, served.procedure), smoothed.sealed())
        config = run_config("certification", smoothed, probe, served.procedure, None, None)
        config["data"] = {"name": REQUESTS}
        config["served"] = {"name": name, "noise_index": 0, "answers": "predictions" if predict else "certificates"}
        session = session_facts(smoothed.device, probe, (served.facts or {}).get("source"))
        writer = stack.enter_context(open_run(folder, config, session))
        self._writers[name, predict] = writer
        self._next[name, predict] = 1 + max(writer.done, default=-1)

    @property
    def _inputs_folder(self) -> Path:
        return self.path.with_name(f"{self.path.name}-inputs")

    def append(
        self, name: str, found: Certificate | Prediction, answer: Json, values: NDArray[np.float32], seconds: float
    ) -> int:
        """Record an answer; return the number of its row once nothing but a power cut can lose it.

        Raises:
            Refused: If it cannot be written; then the answer must not be sent.
        """
        key = name, isinstance(found, Prediction)
        with self._lock:
            if self._closed:
                raise Refused(503, "the server is shutting down; ask another one.", 1)
            number = self._next[key]
            self._next[key] += 1
            try:
                if self._inputs:
                    self._keep_input(name, number, key[1], values)
                self._writers[key].append(self._row(found, answer, number, seconds))
            except (RunError, OSError) as error:
                raise Refused(
                    503, "the answer could not be recorded, so it is not sent; ask again later.", 10
                ) from error
        return number

    def _row(self, found: Certificate | Prediction, answer: Json, number: int, seconds: float) -> Row:
        label = max(found.label, 0)
        if isinstance(found, Certificate):
            return {**certificate_row(found, label, seconds), "index": number}
        norm = answer["procedure"].get("norm")
        row = {
            "index": number,
            "label": label,
            "predict": found.label,
            "radius": 0.0,
            "correct": found.label != ABSTAIN,
            "p_lower": 0.0,
            "alpha": found.alpha,
            "norm": getattr(norm, "value", norm) or noise_from_config(answer["noise"]).norms[0].value,
            "n": found.n,
            "counts": list(found.counts),
            "n0": 0,
            "selection": [],
            "seconds": seconds,
            "seed": found.seed,
            "model": answer["model"]["identity"],
        }
        return {name: row.get(name) for name in SCHEMA.names}

    def _keep_input(self, name: str, number: int, predict: bool, values: NDArray[np.float32]) -> None:
        stream = io.BytesIO()
        np.save(stream, values, allow_pickle=False)
        file = self._inputs_folder / f"{name}-{'prediction' if predict else 'certificate'}-{number}.npy"
        file.write_bytes(stream.getvalue())

    def close(self) -> None:
        """Finish the run folders, which are then complete Parquet files."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with self._stack:
                for writer in self._writers.values():
                    try:
                        writer.seal()
                    except RunError:  # the rows stay pending
                        continue

"""Checkpoints that are damaged, of another kind, or that must not be trusted."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from smoothcert.models import CheckpointInfo, build, describe, load_checkpoint, load_model, save_checkpoint
from smoothcert.types import CheckpointError

DIGITS = CheckpointInfo.of("digits-cnn")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return save_checkpoint(tmp_path / "model.safetensors", build("digits-cnn"), DIGITS)


def rewritten(path: Path, *, metadata: dict | str | None = None, **tensors: torch.Tensor) -> Path:
    """The checkpoint with other metadata or tensors."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    info = json.loads(header["__metadata__"]["smoothcert"])
    text = metadata if isinstance(metadata, str) else json.dumps({**info, **(metadata or {})})
    path.write_bytes(safetensors.torch.save({**safetensors.torch.load(data), **tensors}, {"smoothcert": text}))
    return path


class TestDamage:
    def test_missing(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"there is no checkpoint at '.*absent\.safetensors'"):
            load_checkpoint(tmp_path / "absent.safetensors")

    @pytest.mark.parametrize("keep", [0, 5, 60, 2000, -1])
    def test_truncated(self, saved, keep):
        saved.write_bytes(saved.read_bytes()[:keep])
        for read in (load_checkpoint, describe):
            with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
                read(saved)

    @pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".png", ""])
    @pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n" + bytes(200), b"epoch\tloss\n1\t0.5\n"])
    def test_no_checkpoint_at_all(self, tmp_path, suffix, data):
        path = tmp_path / f"file{suffix}"
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"not a checkpoint|not a safetensors file"):
            load_checkpoint(path)

    def test_told_apart_by_content_not_by_name(self, saved):
        path = saved.rename(saved.with_suffix(".bin"))
        assert load_checkpoint(path).info == DIGITS

    def test_newer_format(self, saved):
        rewritten(saved, metadata={"format_version": 2, "architecture": "of-the-future"})
        with pytest.raises(CheckpointError, match=r"newer smoothcert \(format 2; this one reads up to 1\); upgrade"):
            load_checkpoint(saved)

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            ("{not json", "damaged metadata"),
            ("[" * 100_000, "damaged metadata"),
            ("[]", "invalid metadata"),
            ("{}", r"invalid metadata \(architecture\): Field required"),
            ({"num_classes": "many"}, r"invalid metadata \(num_classes\)"),
            ({"num_classes": 1}, "num_classes must be at least 2"),
            ({"num_classes": 2**63}, "at most 1000000, not"),
            ({"input_shape": [2**40, 8, 8]}, "input_shape must be"),
            ({"architecture": "digits-cn"}, "unknown architecture 'digits-cn'; did you mean 'digits-cnn'"),
            ({"normalize": [[0.5], [0.0]]}, "std that is not positive"),
        ],
    )
    def test_wrong_metadata(self, saved, metadata, message):
        rewritten(saved, metadata=metadata)
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(saved)

    def test_metadata_of_another_architecture(self, saved):
        rewritten(saved, metadata={"architecture": "cifar-resnet20", "input_shape": [3, 32, 32]})
        with pytest.raises(CheckpointError, match=r"unexpected .*; missing .* more\."):
            load_checkpoint(saved)

    def test_shape_mismatch(self, saved):
        rewritten(saved, **{"fc1.bias": torch.zeros(65)})
        with pytest.raises(CheckpointError, match=r"tensor 'fc1\.bias' has shape \(65,\), but \(64,\) is needed"):
            load_checkpoint(saved)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_not_finite(self, saved, value):
        rewritten(saved, **{"fc1.bias": torch.full((64,), value)})
        for read in (load_checkpoint, describe):
            with pytest.raises(CheckpointError, match=r"tensor 'fc1\.bias' holds values that are not finite"):
                read(saved)

    def test_too_large_for_the_type_of_the_network(self, saved):
        rewritten(saved, **{"fc1.bias": torch.full((64,), 1e300, dtype=torch.float64)})
        with pytest.raises(CheckpointError, match="not finite"):
            load_checkpoint(saved)

    def test_another_type(self, saved):
        rewritten(saved, **{"fc1.bias": torch.zeros(64, dtype=torch.int64)})
        with pytest.raises(
            CheckpointError, match=r"'fc1\.bias' of type torch\.int64 is not a plain torch\.float32 tensor"
        ):
            load_checkpoint(saved)

    @pytest.mark.parametrize("region", [600, 150_000], ids=["header", "anywhere"])
    def test_flipped_bytes_load_or_are_refused(self, saved, region):
        data = saved.read_bytes()
        rng = random.Random(0)
        for _ in range(100):
            damaged = bytearray(data)
            damaged[rng.randrange(region)] = rng.randrange(256)
            saved.write_bytes(damaged)
            with contextlib.suppress(CheckpointError):
                load_checkpoint(saved)

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read everything")
    def test_unreadable(self, saved):
        saved.chmod(0)
        with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
            load_checkpoint(saved)


class Malicious:
    """Creates a file when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.target), "w"))


class TestUnsafe:
    @pytest.mark.filterwarnings("ignore:Detected pickle protocol")
    @pytest.mark.parametrize("style", ["zip", "legacy", "pickle2", "pickle5"])
    def test_code_in_a_pickle_is_refused_and_not_run(self, tmp_path, style):
        target = tmp_path / "created"
        content = {"arch": "lenet", "state_dict": build("lenet").state_dict(), "extra": Malicious(target)}
        path = tmp_path / "m.pth.tar"
        if style in ("zip", "legacy"):
            torch.save(content, path, _use_new_zipfile_serialization=style == "zip")
        else:
            path.write_bytes(pickle.dumps(Malicious(target), protocol=int(style[-1])))
        for read in (load_checkpoint, load_model, describe):
            with pytest.raises(CheckpointError, match="refused"):
                read(path)
        assert not target.exists()
        unsafe = (
            pickle.loads
            if style.startswith("pickle")
            else lambda data: torch.load(io.BytesIO(data), weights_only=False)
        )
        unsafe(path.read_bytes())
        assert target.exists()  # so the file was indeed malicious

    def test_the_code_is_named(self, tmp_path):
        torch.save({"state_dict": {}, "best": Malicious(tmp_path / "created")}, tmp_path / "m.pth")
        with pytest.raises(CheckpointError, match=r"would run code \(\w+\.open\) when loaded and is refused"):
            load_checkpoint(tmp_path / "m.pth")

    def test_a_whole_pickled_model_is_refused(self, tmp_path):
        torch.save(build("lenet"), tmp_path / "m.pth")
        with pytest.raises(CheckpointError, match=r"would run code .*LeNet.*save the state_dict alone"):
            load_checkpoint(tmp_path / "m.pth")

    def test_numpy_values_are_refused_in_one_sentence(self, tmp_path):
        torch.save({"state_dict": build("lenet").state_dict(), "best": np.float64(0.5)}, tmp_path / "m.pth")
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(tmp_path / "m.pth")
        assert "\n" not in str(caught.value)

"""Noisy samples per second of one network that is loaded from different sources, relative to the plain module.

The same weights are certified as a module, from an ONNX file, as TorchScript, as a ``.pt2`` file and from a Hugging
Face folder, in short turns one after the other; a ratio is the median over the rounds. A wrapper of one line returns
the logits of the Hugging Face module. Needs the extras ``onnx`` and ``hf``.
"""

from __future__ import annotations

import copy
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

from smoothcert import Cohen, Gaussian, Smoothed, load_model, models
from throughput import ratio, seconds

TURNS = 9
SAMPLES = {"lenet": 20_000, "cifar-resnet20": 3_000, "hf resnet": 3_000, "hf vit": 3_000}


class Logits(nn.Module):
    """A Hugging Face network as users wrap it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(pixel_values=x).logits
        return logits


def exported(name: str, folder: Path) -> tuple[dict[str, nn.Module], tuple[int, ...]]:
    """One of our networks as a module and from each kind of file."""
    model, shape = models.build(name).eval(), models.MODELS[name].input_shape
    example, batch = torch.rand(2, *shape), torch.export.Dim("batch")
    torch.onnx.export(
        copy.deepcopy(model), (example,), folder / "net.onnx", dynamic_shapes=({0: batch},), dynamo=True, verbose=False
    )
    torch.jit.save(torch.jit.trace(model, example), folder / "net.pt")
    torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: batch},)), folder / "net.pt2")
    files = {"onnx": "net.onnx", "torchscript": "net.pt", "pt2": "net.pt2"}
    return {"module": model, **{kind: load_model(folder / file) for kind, file in files.items()}}, shape


def huggingface(kind: str, folder: Path) -> tuple[dict[str, nn.Module], tuple[int, ...]]:
    """A small network of transformers as a module and from its folder."""
    network: nn.Module
    if kind == "hf resnet":
        network = ResNetForImageClassification(
            ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64], depths=[2, 2, 2], layer_type="basic")
        )
    else:
        network = ViTForImageClassification(
            ViTConfig(
                image_size=32,
                patch_size=4,
                hidden_size=64,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=128,
            )
        )
    network.eval().save_pretrained(folder)  # type: ignore[operator]
    return {"module": Logits(network), "folder": load_model(folder)}, (3, 32, 32)


def measure(name: str, samples: int, folder: Path) -> dict[str, float]:
    torch.manual_seed(0)
    made, shape = (huggingface if name.startswith("hf") else exported)(name, folder)
    x, runs = torch.rand(shape), dict[str, Callable[[], object]]()
    for kind, model in made.items():
        smoothed = Smoothed(model, Gaussian(0.5))
        smoothed.prepare(x, samples=samples * (TURNS + 1) * 1000)
        runs[kind] = lambda smoothed=smoothed: smoothed.certify(x, Cohen(n=samples, n0=1))
    times = seconds(runs, TURNS)
    return {kind: ratio(times["module"], times[kind]) for kind in times}


def main() -> None:
    warnings.simplefilter("ignore")
    results = {}
    for name, samples in SAMPLES.items():
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(name, samples, Path(folder))
    print(json.dumps({"benchmark": "sources", "threads": torch.get_num_threads(), "results": results}))
    kinds = list(dict.fromkeys(kind for ratios in results.values() for kind in ratios))
    table = Table(title=f"Throughput relative to the module (medians of {TURNS} turns)")
    for column in ("network", *kinds):
        table.add_column(column, justify="right")
    for name, ratios in results.items():
        table.add_row(name, *(f"{ratios[kind]:.2f}" if kind in ratios else "" for kind in kinds))
    Console().print(table)


if __name__ == "__main__":
    main()

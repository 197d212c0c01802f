"""An int8 model against the float one: certified noisy samples per second, in turns, on one thread.

Contenders take turns as in throughput.py. ``float`` is the runtime that certification chooses for the float model by
itself, ``int8`` is what ``quantize`` makes of it, and ``bf16`` is the float model with weights and activations in
bfloat16. With ``--model`` and ``--data``, it certifies a trained model and its int8 form instead, from scratch and from
the run of the original, and prints average certified radii.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch

from smoothcert import Cohen, Gaussian, Smoothed, certify_dataset, data, load_model, models, quantize, recertify
from throughput import ratio, seconds

SIGMA, TURNS = 0.5, 9
MODELS = {"lenet": 20_000, "cifar-resnet20": 3_000}
"""Samples per turn."""


def speed(name: str, n: int, folder: Path) -> dict[str, object]:
    torch.manual_seed(0)
    model = models.build(name).eval()
    shape = models.MODELS[name].input_shape
    with torch.no_grad():
        for module in model.modules():  # batch statistics as of a trained network, which are not 0 and 1
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    inputs = [torch.rand(shape) for _ in range(64)]
    contenders = {
        "float": model,
        "int8": quantize(model, inputs, Gaussian(SIGMA), folder / f"{name}.onnx"),
        "bf16": models.build(name).eval().bfloat16(),
    }
    contenders["bf16"].load_state_dict(model.state_dict())
    smoothed = {key: Smoothed(each, Gaussian(SIGMA)) for key, each in contenders.items()}
    chosen = {key: each.prepare(inputs[0], samples=10_000_000).name for key, each in smoothed.items()}
    runs = {key: lambda each=each: each.certify(inputs[0], Cohen(n=n, n0=1)) for key, each in smoothed.items()}
    times = seconds(runs, TURNS)
    rates = {key: round(n / statistics.median(turns)) for key, turns in times.items()}
    ratios = {key: round(ratio(times["float"], times[key]), 2) for key in ("int8", "bf16")}
    return {"samples per second": rates, "over float": ratios, "runtime": chosen}


def radii(checkpoint: str, dataset: str, root: Path | None, every: int, n: int, work: Path) -> dict[str, object]:
    """Average certified radii and seconds of the original, and of int8 from scratch and from the original's run."""
    loaded = models.open_model(checkpoint)
    noise = Gaussian(loaded.noise["sigma"])
    training, test = (data.load(dataset, split=split, root=root) for split in ("train", "test"))
    inputs = [training[index][0] for index in range(0, len(training), max(len(training) // 256, 1))]
    file = work / "model.int8.onnx"
    changed = load_model(file) if file.exists() else quantize(loaded.model, inputs, noise, file)
    original, quantised = Smoothed(loaded.model, noise), Smoothed(changed, noise)
    runs = {"original": certify_dataset(original, test, Cohen(n), run=work / "original", every=every)}
    for samples in (n // 100, n // 10, n):
        place = work / f"scratch-{samples}"
        runs[f"int8, n = {samples:,}"] = certify_dataset(quantised, test, Cohen(samples), run=place, every=every)
    for samples in (n // 100, n // 10):
        runs[f"int8 recertified, n = {samples:,}"] = recertify(
            runs["original"], loaded.model, quantised, test, run=work / f"recertified-{samples}", n=samples
        )
    found = {}
    for name, run in runs.items():
        rows = run.rows()
        both = sum(row["changed"] is not None for row in rows)
        middle = [row["radius"] for row, first in zip(rows, runs["original"].rows(), strict=True) if unsure(first)]
        found[name] = {
            "acr": round(run.acr, 4),
            "acr below 0.99": round(sum(middle) / len(middle), 4),
            "seconds": round(sum(row["seconds"] for row in rows), 1),
            "abstained": sum(row["predict"] < 0 for row in rows),
            "original called": both,
            "inputs": len(rows),
        }
    return found


def unsure(row: dict[str, object]) -> bool:
    """Whether the original gave its most frequent class less than 99 % of its votes."""
    return max(row["counts"]) < 0.99 * row["n"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a checkpoint to certify")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--work", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = args.work or Path(folder)
        work.mkdir(exist_ok=True)
        if args.model:
            found = radii(args.model, args.data, args.root, args.every, args.n, work)
        else:
            found = {name: speed(name, n, Path(folder)) for name, n in MODELS.items()}
    print(json.dumps({"benchmark": "quantized", "results": found}, indent=1))


if __name__ == "__main__":
    main()

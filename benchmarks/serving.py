"""The service on one machine: samples and requests per second, latency under load, and wrong answers.

For a LeNet on MNIST and a ResNet-20 on CIFAR-10, each under Anytime at r = σ/2: callers over loopback, 1, 8 and 64 at a
time; ``certify_dataset`` on the same images; and a naive server, the same web framework with a lock around
``Smoothed.certify``. Then requests at random times at 80 % of the measured rate with a deadline, and a linear
classifier with known radii under full load, with random deadlines and callers that hang up. Callers and server share
the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from serving_load import HOST, closed_loop, one, open_loop, port_of, request, save, server, show, start

HERE = Path(__file__).resolve()
LENET = HERE.parents[1] / "zoo" / "mnist-lenet-gaussian-0.50" / "model.safetensors"
DEADLINE = 0.2
ALPHAS = (0.001, 0.05)


class HalfSpace(nn.Module):
    """Class 1 where the first pixel exceeds ½; the radius is the distance from there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x.flatten(1)[:, 0] - 0.5
        return torch.stack([-score, score], dim=1)


def half_space() -> nn.Module:
    """Make the classifier with known radii, for ``smoothcert serve``."""
    return HalfSpace()


def images(dataset: str, count: int) -> list[torch.Tensor]:
    from smoothcert import data

    found = data.load(dataset, split="test")
    return [found[i * len(found) // count][0] for i in range(count)]


def png(x: torch.Tensor) -> bytes:
    from PIL import Image

    pixels = (x * 255).round().byte().permute(1, 2, 0).numpy()
    stream = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(stream, "PNG")
    return stream.getvalue()


def dataset_rate(model: str, dataset: str, sigma: float, count: int) -> dict[str, Any]:
    """Samples per second of ``certify_dataset`` on the same images, in a process that does nothing else."""
    code = f"""
import sys, tempfile, time
sys.path.insert(0, {str(HERE.parent)!r})
from serving import images
import smoothcert as sc
smoothed = sc.Smoothed(sc.load_model({model!r}), sc.Gaussian({sigma}, grid=255))
inputs = [(x, 0) for x in images({dataset!r}, {count})]
with tempfile.TemporaryDirectory() as folder:
    sc.certify_dataset(smoothed, inputs[:64], sc.Anytime({sigma / 2}), run=folder + "/warm", progress=False)
    begin = time.perf_counter()
    run = sc.certify_dataset(smoothed, inputs, sc.Anytime({sigma / 2}), run=folder + "/run", progress=False)
    took = time.perf_counter() - begin
    samples = sum(run.table()["n"].to_pylist())
print(len(inputs) / took, samples / took, samples / len(inputs))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    rate, samples, each = map(float, found[-3:])
    return {"requests/s": round(rate, 1), "samples/s": round(samples), "samples per request": round(each)}


NAIVE = """
import io, sys, threading
import numpy as np, torch, uvicorn
from fastapi import FastAPI, Request
from PIL import Image
import smoothcert as sc
from smoothcert.tensors import image_tensor

model, sigma = sys.argv[1], float(sys.argv[2])
smoothed = sc.Smoothed(sc.load_model(model), sc.Gaussian(sigma, grid=255))
procedure, lock, app = sc.Anytime(sigma / 2), threading.Lock(), FastAPI()

def answer(body):
    x = image_tensor(Image.open(io.BytesIO(body)))
    with lock:
        return smoothed.certify(x, procedure)

@app.post("/v1/certify")
async def certify(request: Request):
    from starlette.concurrency import run_in_threadpool
    found = await run_in_threadpool(answer, await request.body())
    return {"samples": found.samples, "label": found.label, "radius": found.radius, "votes": found.counts}

@app.get("/readyz")
def ready():
    return {}

shape = tuple(map(int, sys.argv[3].split("x")))
smoothed.certify(torch.zeros(shape), procedure)
config = uvicorn.Config(app, port=int(sys.argv[4]), log_level="warning")
print(f"http://127.0.0.1:{config.port}", file=sys.stderr, flush=True)
uvicorn.Server(config).run()
"""


def throughput(name: str, model: str, dataset: str, sigma: float, shape: str, options: argparse.Namespace) -> Any:
    bodies = [request(png(x), "image/png") for x in images(dataset, options.images)]
    rows: dict[str, dict[str, Any]] = {"certify_dataset": dataset_rate(model, dataset, sigma, options.images)}
    serve = [model, "--sigma", str(sigma), "--radius", str(sigma / 2), "--queue", "1024"]
    with server(*serve) as (port, _):
        for clients in (64, 1, 8, 64):  # the first 64 warm up
            load = asyncio.run(closed_loop(port, clients, bodies, options.seconds))
            rows[f"served, {clients} clients"] = load.row()
    process = start([sys.executable, "-c", NAIVE, model, str(sigma), shape, str(options.port)])
    try:
        port = port_of(process)
        for clients in (1, 8, 64):
            rows[f"naive, {clients} clients"] = asyncio.run(closed_loop(port, clients, bodies, options.seconds)).row()
    finally:
        process.kill()
    most = rows["served, 64 clients"]
    ratio = {
        "samples/s of certify_dataset": round(most["samples/s"] / rows["certify_dataset"]["samples/s"], 2),
        # Requests take from 20 to 100,000 samples, so a turn's requests per second are mostly luck; samples are not.
        "samples/s of the naive server": round(most["samples/s"] / rows["naive, 64 clients"]["samples/s"], 2),
    }
    with server(*serve, "--deadline", str(DEADLINE)) as (port, _):
        alone = asyncio.run(closed_loop(port, 1, bodies, options.seconds)).row()
        rows["1 client with a deadline"] = alone
        # A request needs as many samples as alone, and the machine draws as many a second as for 64 clients.
        rate = 0.8 * most["samples/s"] / alone["samples per request"]
        rows[f"{rate:.0f}/s at random times (80 % load), deadline {1000 * DEADLINE:g} ms"] = asyncio.run(
            open_loop(port, rate, bodies, 3 * options.seconds)
        ).row()
        rows["64 clients with a deadline"] = asyncio.run(closed_loop(port, 64, bodies, options.seconds)).row()
    print(f"\n{name}\n")
    show(rows)
    print(ratio)
    return {"rows": rows, "ratio": ratio}


def wrong_answers(wanted: int, alpha: float) -> dict[str, Any]:
    """Count wrong answers of a linear classifier under full load, with random deadlines and callers that hang up.

    Only answers with a class count; an abstention claims nothing. With a large α, wrong answers are frequent enough to
    show whether there are more than α.
    """
    import json

    sigma, found = 0.25, {"answers": 0, "wrong": 0, "certified": 0, "abstained": 0, "hung up": 0, "failed": 0}
    rng = random.Random(0)
    whites = [*range(130, 200, 2), *range(60, 126, 2)]

    def body(white: int) -> bytes:
        x = np.full((1, 4, 4), 128, np.uint8)
        x[0, 0, 0] = white
        radii = ",".join(f"{r:.3f}" for r in sorted(rng.sample([0.01, 0.03, 0.05, 0.1, 0.15, 0.2], rng.randint(1, 3))))
        wait = rng.choice([0.001, 0.005, 0.02, 0.05, 0.2, 1.0])
        return request(png(torch.from_numpy(x) / 255), "image/png", f"?radius={radii}&deadline={wait}")

    async def caller(port: int) -> None:
        while found["answers"] < wanted:
            white = rng.choice(whites)
            if rng.random() < 0.15:
                _, writer = await asyncio.open_connection(HOST, port)
                writer.write(body(white))
                await asyncio.sleep(rng.choice([0, 0.001, 0.01, 0.05]))
                writer.transport.abort()
                found["hung up"] += 1
                continue
            status, text = await one(port, body(white))
            if status != 200:
                found["failed"] += 1
                continue
            answer, distance = json.loads(text), (white - 127.5) / 255
            if answer["label"] < 0:
                found["abstained"] += 1
                continue
            found["answers"] += 1
            found["certified"] += answer["outcome"] == "certified"
            found["wrong"] += answer["label"] != int(distance > 0) or answer["radius"] > abs(distance)

    async def callers(port: int) -> None:
        await asyncio.gather(*(caller(port) for _ in range(16)))

    serve = [f"{HERE}:half_space", "--shape", "1x4x4", "--sigma", str(sigma), "--radius", "0.1", "--deadline", "1"]
    with server(*serve, "--alpha", str(alpha)) as (port, _):
        begin = time.monotonic()
        asyncio.run(callers(port))
        found["seconds"] = round(time.monotonic() - begin)
    p = stats.binomtest(found["wrong"], found["answers"], alpha, alternative="greater").pvalue
    most = round(alpha * found["answers"], 1)
    return {"alpha": alpha, **found, "expected at most": most, "p-value of more": round(float(p), 3)}


def first_answers(model: str) -> dict[str, float]:
    """Return the seconds from the command to ready, and from ready to the first answer."""
    body = request(png(images("mnist", 1)[0]), "image/png")
    begin = time.monotonic()
    with server(model, "--radius", "0.25") as (port, _):
        ready = time.monotonic()
        status, _ = asyncio.run(one(port, body))
        assert status == 200
        return {"ready after the command": round(ready - begin, 2), "first answer": round(time.monotonic() - ready, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--resnet", help="a ResNet-20 trained on CIFAR-10; without one, it is untrained")
    parser.add_argument("--sigma", type=float, default=0.5, help="of the ResNet's training")
    parser.add_argument("--port", type=int, default=8431, help="of the naive server")
    parser.add_argument("--only", choices=("lenet", "resnet", "wrong", "start"))
    parser.add_argument("-o", "--output", help="a file for the numbers, as JSON")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    parts = (options.only,) if options.only else ("start", "lenet", "resnet", "wrong")
    if "start" in parts:
        found["start"] = first_answers(str(LENET))
        print(found["start"], flush=True)
    if "lenet" in parts:
        found["lenet"] = throughput("LeNet, MNIST", str(LENET), "mnist", 0.5, "1x28x28", options)
    if "resnet" in parts:
        with tempfile.TemporaryDirectory() as folder:
            model = options.resnet
            if model is None:
                from smoothcert.models import CheckpointInfo, build, save_checkpoint

                torch.manual_seed(0)
                print("The ResNet-20 is untrained.")
                info = CheckpointInfo.of("cifar-resnet20", sigma=options.sigma)
                model = str(save_checkpoint(Path(folder) / "resnet20.safetensors", build("cifar-resnet20"), info))
            found["resnet"] = throughput("ResNet-20, CIFAR-10", model, "cifar10", options.sigma, "3x32x32", options)
    if "wrong" in parts:
        found["wrong"] = []
        for alpha in ALPHAS:
            found["wrong"].append(wrong_answers(options.answers, alpha))
            print(found["wrong"][-1], flush=True)
    if options.output:
        save(options.output, found)


if __name__ == "__main__":
    main()

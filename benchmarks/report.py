"""Size and speed of a report over 5 runs of 10 000 inputs: writing it, opening it in Chromium, and going through it.

The runs are made up (votes drawn at random) over real images where CIFAR-10 is here, and over noise where it is not,
which is the worst case for the size of images. Needs ``playwright`` and a Chromium on the PATH for the second half.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from smoothcert import data
from smoothcert.data.inputs import data_fingerprint
from smoothcert.noise import Gaussian
from smoothcert.report.page.html import report_html, write_report
from smoothcert.stats import lower_bound
from smoothcert.store.run import write_run

RUNS, INPUTS, CLASSES, N, ALPHA, SIGMA = 5, 10_000, 10, 100_000, 0.001, 0.5


def dataset() -> data.Dataset:
    """Colour images: CIFAR-10, or noise."""
    if data.available("cifar10"):
        return data.load("cifar10", split="test")
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (INPUTS, 3, 32, 32), dtype=np.uint8)
    names = tuple(map(str, range(CLASSES)))
    return data.ArrayDataset(images, random.integers(0, CLASSES, INPUTS), name="noise", split="test", class_names=names)


def made_up(folder: Path, images: data.Dataset, seed: int) -> None:
    """A run whose votes are drawn at random."""
    random = np.random.default_rng(seed)
    label = np.array([images[index][1] for index in range(INPUTS)])
    votes = np.stack([random.multinomial(N, p) for p in random.dirichlet(np.full(CLASSES, 0.15), INPUTS)])
    top = votes.argmax(axis=1)
    bound = lower_bound(votes.max(axis=1), N, ALPHA)
    predict = np.where(bound > 0.5, np.where(random.random(INPUTS) < 0.8, label, top), -1)
    table = pa.table(
        {
            "index": np.arange(INPUTS),
            "label": label,
            "predict": predict,
            "radius": np.where(predict >= 0, Gaussian(SIGMA).radius(bound), 0.0),
            "p_lower": bound,
            "alpha": np.full(INPUTS, ALPHA),
            "norm": ["l2"] * INPUTS,
            "guarantee": ["global"] * INPUTS,
            "n": np.full(INPUTS, N),
            "n0": np.full(INPUTS, 100),
            "counts": votes.tolist(),
            "seconds": random.uniform(5, 10, INPUTS),
        }
    )
    config = {
        "kind": "certification",
        "procedure": {"name": "cohen", "alpha": ALPHA, "n0": 100, "n": N, "norm": None},
        "noise": {"name": "gaussian", "sigma": SIGMA},
        "num_classes": CLASSES,
        "data": data_fingerprint(images, range(INPUTS)),
        "inputs": {"every": 1, "start": 0, "stop": None},
    }
    write_run(folder, table, config, {})


def in_browser(page: Path) -> dict[str, float]:
    """Seconds until the page is ready, and until it has followed a few commands."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page()
        begin = time.perf_counter()
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector("#grid .tile")
        times = {"open": time.perf_counter() - begin}
        commands = {
            "sort by radius": lambda: tab.select_option("#sort-by", "largest"),
            "filter": lambda: (tab.select_option("#by-a", "0"), tab.select_option("#by-b", "1")),
            "next page": lambda: tab.click("#page-on"),
            "hide a run": lambda: tab.click("#legend button:first-child"),
        }
        for name, command in commands.items():
            begin = time.perf_counter()
            command()
            tab.evaluate("new Promise(requestAnimationFrame)")
            times[name] = time.perf_counter() - begin
        browser.close()
    return times


def main() -> None:
    images = dataset()
    with tempfile.TemporaryDirectory() as work:
        for seed in range(RUNS):
            made_up(Path(work) / f"run-{seed}", images, seed)
        begin = time.perf_counter()
        page = report_html([work], dataset=images)
        writing = time.perf_counter() - begin
        file = Path(work) / "report.html"
        size = write_report(file, page)
        times = in_browser(file)
    rounded = {f"{name} (s)": round(seconds, 2) for name, seconds in times.items()}
    print(
        json.dumps(
            {"images": images.name, "size (MB)": round(size / 1e6, 1), "write (s)": round(writing, 1), **rounded}
        )
    )


if __name__ == "__main__":
    main()

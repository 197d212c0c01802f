"""The pictures of docs/figures.md: trains on the bundled digits, certifies, and draws each kind once.

    python benchmarks/figures.py --work /tmp/figures

A minute or two on a laptop; a second call computes only what is missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from smoothcert.cli import plot
from smoothcert.cli.app import app

RECIPE = "digits-gaussian-0.25-quick"
SIGMAS = (0.06, 0.12, 0.18, 0.25, 0.35, 0.5)
DPI = 80


def certify(model: Path, run: Path, *options: object) -> Path:
    """Certify every fourth digit into a run folder, or what is missing there."""
    command = ["certify", model, "--data", "digits", "--every", 4, *options, "--run", run]
    app([str(part) for part in command], standalone_mode=False)
    return run


def draw(output: Path, kind: str, paths: Sequence[Path], **options: object) -> None:
    """Draw a picture, small enough for a page."""
    figure = plot.draw(kind, paths, plot.PlotOptions(**options))
    file = output / f"{kind}.png"
    figure.savefig(file, dpi=DPI)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the model and the runs go")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "docs" / "figures")
    given = parser.parse_args()
    model = given.work / "models" / RECIPE
    if not model.exists():
        app(["train", RECIPE, "--output", str(model)], standalone_mode=False)
    runs = [
        certify(model, given.work / "digits" / f"sigma-{sigma:.2f}", "--sigma", sigma, "--n", 1000) for sigma in SIGMAS
    ]
    fixed = certify(model, given.work / "digits" / "fixed", "--n", 10_000)
    early = [
        certify(model, given.work / "digits" / "anytime", "--procedure", "anytime", "--radius", 0.5),
        certify(model, given.work / "digits" / "staged", "--procedure", "staged", "--radius", 0.5),
    ]
    given.output.mkdir(parents=True, exist_ok=True)
    draw(given.output, "curve", [runs[1], runs[3], runs[5]], envelope=True, intervals=True)
    draw(given.output, "tradeoff", runs)
    draw(given.output, "effect", runs, over="noise.sigma", radii=(0, 0.25, 0.5))
    draw(given.output, "confidence", [runs[1], runs[3], runs[5]])
    draw(given.output, "samples", [*early, fixed])
    draw(given.output, "inputs", [fixed])


if __name__ == "__main__":
    main()

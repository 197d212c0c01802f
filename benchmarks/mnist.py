"""The seven training methods on MNIST at σ = 0.50, next to the papers' models on the same 200 test images.

Rebuilds ``docs/mnist.md`` from the models and runs in ``zoo``. What is missing there is made first: a model by its
quick recipe, a run by CERTIFY with n = 100 000 on test images 0, 50, 100, …; both can be stopped and continued. Making
them needs MNIST (``benchmarks/prepare_data.py``) and takes hours on two cores. ``--time`` measures how long each recipe
takes, on a machine that does nothing else.

Usage: python benchmarks/mnist.py [--kept-only] [--time] [METHOD ...]
"""

from __future__ import annotations

import json
from pathlib import Path

from smoothcert.report.metrics import acr_text, average_certified_radius, certified_accuracy
from trained import Trained, make, parser
from zoo import minutes

PAGE = Path(__file__).parents[1] / "docs" / "mnist.md"
RADII = (0.0, 0.5, 1.0, 1.5)
PUBLISHED = {
    "gaussian": (1.519, "1.511–1.524"),
    "stability": (1.536, "1.525–1.544"),
    "macer": (1.563, "1.549–1.573"),
    "consistency": (1.625, "1.621–1.631"),
    "smoothadv": (1.660, ""),
    "smoothmix": (1.670, ""),
    "catrs": (1.679, ""),
}
"""ACR of the papers' models on these images, from their published logs, and its range over five seeds."""

MODELS = {method: Trained(f"mnist-lenet-{method}-0.50", f"mnist-{method}-0.50-quick") for method in PUBLISHED}


def figures(method: str) -> dict[str, object]:
    outcomes = MODELS[method].outcomes()
    acr = average_certified_radius(outcomes)
    published, seeds = PUBLISHED[method]
    return {
        "epochs": MODELS[method].epochs(),
        "minutes": minutes().get(MODELS[method].name),
        "acr": acr,
        "published": published,
        "seeds": seeds,
        "difference": acr / published - 1,
        "certified": [float(value) for value in certified_accuracy(outcomes, RADII)],
    }


INTRODUCTION = """\
# MNIST at σ = 0.50

LeNet trained by the quick recipes (`smoothcert train mnist-METHOD-0.50-quick`, on two CPU cores) and certified with
n = 100 000, α = 0.001 on test images 0, 50, 100, …, next to the papers' models on the same 200 images. Certified
accuracy is in percent. Minutes are those of training, measured on 2 560 images with nothing else running and scaled to
the recipe's epochs; the soft labels of CAT-RS, and the model that makes them, come on top.
`python benchmarks/mnist.py` rebuilds this page.
"""
HEADINGS = (
    "method",
    "epochs",
    "minutes",
    "ACR",
    "published",
    "five seeds",
    "difference",
    *(f"r = {r:g}" for r in RADII),
)


def page(results: dict[str, dict[str, object]]) -> str:
    lines = [INTRODUCTION, f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    for method, r in results.items():
        minutes = "" if r["minutes"] is None else f"{r['minutes']:.1f}"
        shares = " | ".join(f"{100 * share:.1f}" for share in r["certified"])
        lines.append(
            f"| {method} | {r['epochs']} | {minutes} | {acr_text(r['acr'])} | {r['published']:.3f} | {r['seeds']} | "
            f"{100 * r['difference']:+.1f} % | {shares} |"
        )
    missing = [method for method in PUBLISHED if method not in results]
    if missing:
        lines += ["", f"Not yet certified: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    chosen = parser(__doc__, list(MODELS)).parse_args()
    make(MODELS, chosen, n=100_000, grid=None)
    results = {method: figures(method) for method, model in MODELS.items() if model.complete()}
    PAGE.write_text(page(results), encoding="utf-8")
    print(json.dumps({"benchmark": "mnist", "results": results}))
    print(page(results))


if __name__ == "__main__":
    main()

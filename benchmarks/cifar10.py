"""ResNet-20 on CIFAR-10, trained by the quick recipes, next to published values for ResNet-20.

Rebuilds ``docs/cifar10.md`` from the models and runs in ``zoo``. What is missing there is made first: a model by its
quick recipe, a run by CERTIFY with n = 10 000 on test images 0, 50, 100, …; both can be stopped and continued. Making
them needs CIFAR-10 (``benchmarks/prepare_data.py``) and takes hours. ``--time`` measures how long each recipe takes, on
a machine that does nothing else. ``--logs`` names a folder with the published logs of LOGS; what fewer samples cost
there is then computed again and stored in ``benchmarks/cifar10-logs.json``.

Usage: python benchmarks/cifar10.py [--kept-only] [--time] [--logs DIR] [MODEL ...]
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np

from smoothcert import Gaussian, load_run, read_log
from smoothcert.report.intervals import acr_interval
from smoothcert.report.metrics import acr_text, average_certified_radius, certified_accuracy
from smoothcert.stats import lower_bound
from smoothcert.store import Outcomes, Result
from smoothcert.types import radius_text
from trained import Trained, make, parser
from zoo import minutes

PAGE = Path(__file__).parents[1] / "docs" / "cifar10.md"
KEPT = Path(__file__).parent / "cifar10-logs.json"
RADII = (0.0, 0.25, 0.5, 0.75, 1.0)
LEVELS = (0.25, 0.5, 0.75)
N, PUBLISHED_N = 10_000, 100_000
WITHIN = 0.08
SEEDS = (1, 2)

MODELS = {
    f"{method}-{sigma:.2f}": Trained(f"cifar10-resnet20-{method}-{sigma:.2f}", f"cifar10-{method}-{sigma:.2f}-quick")
    for method, sigma in (
        ("gaussian", 0.25),
        ("consistency", 0.25),
        ("gaussian", 0.5),
        ("consistency", 0.5),
        ("smoothmix", 0.5),
        ("catrs", 0.5),
    )
}
MODELS |= {
    f"gaussian-0.50-seed{seed}": replace(
        MODELS["gaussian-0.50"], name=f"{MODELS['gaussian-0.50'].name}-seed{seed}", seed=seed
    )
    for seed in SEEDS
}

HORVATH = "Horváth et al. (2022), Table 8"
PUBLISHED: dict[str, tuple[float, tuple[float, ...], str]] = {
    "gaussian-0.25": (0.434, (77.4, 63.4, 43.6, 26.6), HORVATH),
    "consistency-0.25": (0.528, (71.8, 64.2, 55.6, 45.2), HORVATH),
    "gaussian-0.50": (0.534, (65.2, 55.0, 43.0, 33.0, 22.4), HORVATH),
    "consistency-0.50": (0.691, (62.6, 55.2, 47.4, 41.8, 34.6), HORVATH),
    "catrs-0.50": (0.710, (57.7, 52.7, 48.4, 41.6, 36.2), "Jeong et al. (2023), Table 8"),
}
"""ACR and certified accuracy in percent of one ResNet-20, n = 100 000: on 500 test images, of CAT-RS on 1 000."""

LOGS = {
    "gaussian": ("cohen-cifar10-050/sigma_0.50", 0.5, "Gaussian, σ = 0.50"),
    "consistency": (
        "aces-cifar10-consistency-025/cifar10_consistency_025_certification",
        0.25,
        "Consistency, σ = 0.25",
    ),
}
"""Published logs of ResNet-110 with n = 100 000, α = 0.001, on 500 test images, and the σ of each."""

SAME_LOSS = {"gaussian": "gaussian", "consistency": "consistency", "catrs": "consistency"}
"""The log by which a published value is scaled to our n: that of the method, or of the one most like it."""


def with_fewer_samples(outcomes: Outcomes, sigma: float, n: int) -> Outcomes:
    """The outcomes with the shares of votes that the radii imply, out of n."""
    noise = Gaussian(sigma)
    votes = np.arange(PUBLISHED_N + 1)
    bounds = lower_bound(votes, PUBLISHED_N, 0.001)
    found = np.abs(bounds[:, None] - noise_probability(noise, outcomes.radius)[None, :]).argmin(axis=0)
    p_lower = lower_bound(np.rint(found * n / PUBLISHED_N).astype(int), n, 0.001)
    radius = np.where((outcomes.predict >= 0) & (p_lower > 0.5), noise.radius(p_lower), 0.0)
    return replace(outcomes, predict=np.where(radius > 0, outcomes.predict, -1), radius=radius)


def noise_probability(noise: Gaussian, radius: np.ndarray) -> np.ndarray:
    return np.asarray(noise.threshold(radius))


def cost_of_n(logs: Path) -> dict[str, dict[str, object]]:
    """ACR of the published logs, as it is and at our n."""
    found = {}
    for method, (name, sigma, title) in LOGS.items():
        outcomes = Result(method, read_log(logs / name)).outcomes
        fewer = with_fewer_samples(outcomes, sigma, N)
        found[method] = {
            "title": title,
            "acr": round(average_certified_radius(outcomes), 4),
            "acr at our n": round(average_certified_radius(fewer), 4),
        }
    return found


def published_at_our_n(name: str, logs: dict[str, dict[str, float]]) -> float | None:
    """A published ACR, scaled by what fewer samples cost in a log."""
    if name not in PUBLISHED:
        return None
    log = logs[SAME_LOSS[name.split("-")[0]]]
    return PUBLISHED[name][0] * log["acr at our n"] / log["acr"]


def figures(name: str, logs: dict[str, dict[str, float]]) -> dict[str, object]:
    model = MODELS[name]
    run = load_run(model.folder)
    outcomes = model.outcomes()
    p_lower = run.table(["p_lower"])["p_lower"].to_numpy()
    published = published_at_our_n(name, logs)
    acr = average_certified_radius(outcomes)
    return {
        "epochs": model.epochs(),
        "minutes": minutes().get(model.name),
        "n": run.config["procedure"]["n"],
        "acr": acr,
        "interval": acr_interval(outcomes),
        "published": PUBLISHED[name][0] if name in PUBLISHED else None,
        "published at our n": published,
        "difference": None if published is None else acr / published - 1,
        "certified": [100 * float(value) for value in certified_accuracy(outcomes, RADII)],
        "p_lower": np.quantile(p_lower, LEVELS, method="inverted_cdf").tolist(),
    }


def shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def first_table(results: dict[str, dict[str, object]]) -> list[str]:
    heads = ("model", "epochs", "minutes", "ACR", "95 % interval", "published", "at our n", "difference")
    quantiles = tuple(f"p_A, {100 * level:.0f} %" for level in LEVELS)
    lines = [f"| {' | '.join(heads + quantiles)} |", "|---" * (len(heads) + len(quantiles)) + "|"]
    for name, r in results.items():
        low, high = r["interval"]
        cells = [name, r["epochs"], shown(r["minutes"], ".1f"), acr_text(r["acr"]), f"{low:.3f}–{high:.3f}"]
        cells += [shown(r["published"], ".3f"), shown(r["published at our n"], ".3f")]
        cells += ["" if r["difference"] is None else f"{100 * r['difference']:+.1f} %"]
        cells += [radius_text(p) for p in r["p_lower"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def second_table(results: dict[str, dict[str, object]]) -> list[str]:
    lines = [f"| model | {' | '.join(f'r = {r:g}' for r in RADII)} |", "|---" * (len(RADII) + 1) + "|"]
    for name, r in results.items():
        published = PUBLISHED[name][1] if name in PUBLISHED else ()
        pairs = [
            f"{ours:.1f}" + (f" / {published[place]:.1f}" if place < len(published) else "")
            for place, ours in enumerate(r["certified"])
        ]
        lines.append(f"| {name} | {' | '.join(pairs)} |")
    return lines


def findings(results: dict[str, dict[str, object]]) -> list[str]:
    """What was aimed at, and whether it was reached."""
    lines = []
    for name in PUBLISHED:
        if name in results and not name.startswith("catrs"):
            reached = "reached" if results[name]["difference"] >= -WITHIN else "missed"
            lines.append(
                f"- {name} within {100 * WITHIN:.0f} % of the published ACR at our n: {reached} "
                f"({100 * results[name]['difference']:+.1f} %)."
            )
    order = [name for name in ("gaussian-0.50", "consistency-0.50", "catrs-0.50") if name in results]
    values = [results[name]["acr"] for name in order]
    if len(order) == 3:
        reached = "reached" if values == sorted(values) else "missed"
        lines.append(f"- Gaussian below Consistency below CAT-RS in ACR at σ = 0.50: {reached}.")
    seeds = [results[name]["acr"] for name in results if name.startswith("gaussian-0.50")]
    if len(seeds) > 1:
        spread = f"{np.mean(seeds):.3f} ± {np.std(seeds, ddof=1):.3f}"
        lines.append(f"- ACR of Gaussian at σ = 0.50 over {len(seeds)} seeds: {spread}.")
    missing = [name for name in MODELS if name not in results]
    return lines + ([f"- Not trained or not certified yet: {', '.join(missing)}."] if missing else [])


def page(results: dict[str, dict[str, object]], logs: dict[str, dict[str, object]]) -> str:
    costs = "; ".join(
        f"{log['title']}: {acr_text(log['acr'])} → {acr_text(log['acr at our n'])} "
        f"({100 * (log['acr at our n'] / log['acr'] - 1):+.1f} %)"
        for log in logs.values()
    )
    paragraphs = [
        "ResNet-20 trained by the quick recipes (`smoothcert train cifar10-METHOD-SIGMA-quick`) and certified with "
        f"n = {_thousands(N)}, α = 0.001 on test images 0, 50, 100, … (200 images), next to published values for "
        f"ResNet-20 with n = {_thousands(PUBLISHED_N)} ({HORVATH}; CAT-RS: {PUBLISHED['catrs-0.50'][2]}). The "
        "published models were trained for 150 epochs, ours for the epochs below; with a plus, the first number is the "
        "training of the Gaussian model that this one starts from. Minutes are those of training in one thread with "
        "nothing else running, measured on 2 560 images and scaled to the recipe's epochs; the soft labels of CAT-RS, "
        "and the model that makes them, come on top. `python benchmarks/cifar10.py` rebuilds this page.",
        'Fewer samples prove shorter radii. "At our n" is the published ACR times the share of the ACR that '
        f"{_thousands(N)} samples in place of {_thousands(PUBLISHED_N)} keep in a published log, where each radius "
        f"gives the share of votes. {costs}. These logs are of ResNet-110; the value of CAT-RS is scaled like "
        "Consistency. (On our MNIST runs, whose first 10 000 votes are stored, this estimate is within 0.1 % of the "
        'true ACR.) "Difference" compares ours with that value. "p_A" is the lower bound on the probability of the '
        "class, at quantiles over the images.",
    ]
    certified = f"Certified accuracy in percent, ours / published (n = {_thousands(PUBLISHED_N)}):"
    return "\n".join(
        [
            "# CIFAR-10 with ResNet-20\n",
            *(textwrap.fill(text, 120, break_on_hyphens=False) + "\n" for text in paragraphs),
            *first_table(results),
            f"\n{certified}\n",
            *second_table(results),
            "\n## What was aimed at\n",
            *findings(results),
            "",
        ]
    )


def _thousands(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def main() -> None:
    options = parser(__doc__, list(MODELS))
    options.add_argument("--logs", type=Path, help="folder of the published logs")
    chosen = options.parse_args()
    if chosen.logs:
        KEPT.write_text(json.dumps(cost_of_n(chosen.logs), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    make(MODELS, chosen, n=N, grid=255)
    logs = json.loads(KEPT.read_text(encoding="utf-8"))
    results = {name: figures(name, logs) for name, model in MODELS.items() if model.complete()}
    PAGE.write_text(page(results, logs), encoding="utf-8")
    print(json.dumps({"benchmark": "cifar10", "results": results}))
    print(page(results, logs))


if __name__ == "__main__":
    main()

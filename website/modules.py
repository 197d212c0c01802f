"""The reference pages of the subpackages, made from their lists of public names."""

from __future__ import annotations

import importlib

import smoothcert

MODULES = {
    "noise": "Noises",
    "certify": "Procedures and the smoothed classifier",
    "classifiers": "Base classifiers",
    "stats": "Bounds, tests and the variance model",
    "models": "Models",
    "compositions": "Composed classifiers",
    "data": "Data",
    "training": "Training",
    "evaluate": "Whole datasets",
    "store": "Runs and logs",
    "report": "Tables, figures, pages",
    "attack": "Attacks",
    "doctor": "Checks before a run",
    "testing": "Contract tests for plug-ins",
}
"""The title of the reference page of each subpackage."""


def page(name: str) -> str:
    """Return the page of a module as Markdown: every public name, here or as a link to its page."""
    module = importlib.import_module(f"smoothcert.{name}")
    top = set(smoothcert.__all__)
    ours = [each for each in module.__all__ if each not in top]
    linked = [f"[`{each}`][smoothcert.{each}]" for each in module.__all__ if each in top]
    parts = [f"# smoothcert.{name}\n\n{MODULES[name]}. {(module.__doc__ or '').split(chr(10))[0]}\n"]
    if linked:
        parts.append(f"\nAlso names of `smoothcert`: {', '.join(linked)}.\n")
    parts += [f"\n::: smoothcert.{name}.{each}\n" for each in ours]
    return "".join(parts)

"""Figures of methods on a suite of corruptions, made comparable by ``report.corruptions.comparable``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.lines import Line2D

from smoothcert.report.corruptions import ACR, IDENTITY, SuiteResults, suite_mean, suite_norm
from smoothcert.report.figures.style import COLOURS, MARKERS, Picture, canvas, finished, line_style, plain
from smoothcert.report.metrics import axis_norm
from smoothcert.report.notes import markers
from smoothcert.types import UsageError

_PANELS_IN_A_ROW = 4


def type_figure(methods: Sequence[SuiteResults], *, title: str | None = None) -> Picture:
    """Draw the ACR on every type of corruption, a dot for each method; the mean and the clean set are below."""
    types, found = methods[0].types, methods[0].outcomes
    clean = [IDENTITY] if (IDENTITY, None) in found else []
    names = [*types, ACR.mean_name, *clean]
    groups = [[place for place in found if place[0] == kind] or None for kind in names]  # None: the mean over types
    figure, (axes,) = canvas(height=1.3 + 0.24 * len(names))
    handles, labels = [], _labels(methods)
    for number, method in enumerate(methods):
        handles += axes.plot(
            [float(suite_mean(method, ACR, places)) for places in groups],
            range(len(names)),
            linestyle="none",
            marker=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            markerfacecolor="none" if number >= len(COLOURS) else None,
            label=labels[number],
        )
    axes.axhline(len(types) - 0.5, color="0.4", linewidth=0.8)
    axes.set_yticks(range(len(names)), [plain(name) for name in names])
    axes.set(ylim=(len(names) - 0.5, -0.5), xlabel=_axis(methods))
    axes.set_xlim(left=0)
    return finished(figure, handles, title, columns=2)


def severity_figure(methods: Sequence[SuiteResults], *, title: str | None = None) -> Picture:
    """Draw the ACR over the severity, a panel for each type of corruption; a thin line marks the clean set."""
    levels = methods[0].severities
    if not levels:
        raise UsageError("these results have no severities to draw; draw the types instead.")
    types = [kind for kind in methods[0].types if any((kind, level) in methods[0].outcomes for level in levels)]
    columns = min(_PANELS_IN_A_ROW, len(types))
    rows = math.ceil(len(types) / columns)
    figure, panels = canvas(columns, rows=rows, width=max(2.2 * columns, 4.4), height=1.0 + 1.6 * rows)
    handles, labels = [], _labels(methods)
    top = 0.0
    for axes, kind in zip(panels, types, strict=False):
        for number, method in enumerate(methods):
            found = [level for level in levels if (kind, level) in method.outcomes]
            values = [float(ACR.of(method.outcomes[kind, level])) for level in found]
            lines = axes.plot(found, values, marker=".", label=labels[number], **line_style(number, 1.6))
            handles += lines if axes is panels[0] else []
            top = max(top, *values)
            if (IDENTITY, None) in method.outcomes:
                clean = float(ACR.of(method.outcomes[IDENTITY, None]))
                axes.axhline(clean, **line_style(number, 0.7))
                top = max(top, clean)
        axes.set_title(plain(kind), fontsize="small")
        axes.set_xticks(levels)
    for axes in panels:
        axes.set_ylim(0, 1.08 * top or 1)
        axes.tick_params(labelsize="small")
    for axes in panels[len(types) - columns : len(types)]:  # the lowest of each column
        axes.set_xlabel("severity", fontsize="small")
    for axes in panels[len(types) :]:
        axes.set_axis_off()
    if (IDENTITY, None) in methods[0].outcomes:
        handles.append(Line2D([], [], color="0.4", linewidth=0.7, label="clean set (thin)"))
    figure.supylabel(_axis(methods), fontsize="medium")
    return finished(figure, handles, title, columns=2)


def _labels(methods: Sequence[SuiteResults]) -> list[str]:
    marked = markers([method.subject for method in methods])
    return [
        f"{plain(method.name + marker)} (mACR {ACR.text(suite_mean(method, ACR))})"
        for method, marker in zip(methods, marked, strict=True)
    ]


def _axis(methods: Sequence[SuiteResults]) -> str:
    return f"average certified radius ({axis_norm(suite_norm(methods))})"

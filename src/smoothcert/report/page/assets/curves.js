"use strict";
/* Certified accuracy over the radius: hover, runs that can be hidden, and a logarithmic axis. */
page.parts.push(() => {
  const { group } = page;
  const chart = byId("curve-chart");
  const radii = group.grid.map((value) => value / unit());

  function traces() {
    return group.runs.map((run, place) => ({
      name: chartText(run.name + run.marker),
      x: radii,
      y: run.accuracy,
      customdata: run.accuracyText,
      visible: !page.hidden.has(place),
      mode: "lines",
      // Each accuracy holds since the radius before, so a curve is never above what was proved.
      line: { shape: "vh", width: 2, color: cssColour(`--run-${place % COLOURS}`), dash: dash(place) },
      hovertemplate: "%{customdata} %",
    }));
  }

  function limits() {
    const runs = group.runs.filter((run, place) => run.limit !== null && !page.hidden.has(place));
    return [...new Set(runs.map((run) => run.limit))].map((limit) => {
      const same = runs.filter((run) => run.limit === limit);
      const colour = same.length === 1 ? `--run-${group.runs.indexOf(same[0]) % COLOURS}` : "--soft";
      return { at: limit / unit(), colour, text: `${same.map((run) => run.name).join(", ")}: ${radiusText(limit)}` };
    });
  }

  function layout() {
    const logarithmic = byId("log-scale").checked;
    const positive = group.runs.flatMap((run) => run.accuracy).filter((value) => value > 0);
    const lowest = positive.length ? Math.min(...positive) : 1;
    const marks = limits();
    const right = Math.max(...radii, ...marks.map((mark) => mark.at), 1 / unit());
    return chartLayout({
      hovermode: "x unified",
      xaxis: { title: { text: `${group.norm} radius` }, range: [0, right * 1.04], hoverformat: `.${group.decimals}f`, unifiedhovertitle: { text: `radius %{x:.${group.decimals}f}` }, zeroline: false },
      yaxis: logarithmic
        ? { title: { text: "Certified accuracy (%)" }, type: "log", range: [Math.log10(lowest * 0.8), Math.log10(115)], dtick: 1 }
        : { title: { text: "Certified accuracy (%)" }, range: [0, 102], rangemode: "tozero" },
      shapes: marks.map(({ at, colour }) => ({
        type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line: { color: cssColour(colour), width: 1.5, dash: "dot" },
      })),
    });
  }

  function draw() {
    Plotly.react(chart, traces(), layout(), CHART_SETTINGS);
    const marks = limits();
    byId("limits").hidden = !marks.length;
    byId("limits").textContent = `Sampling limits: ${marks.map((mark) => mark.text).join("; ")}.`;
  }

  function legend() {
    byId("legend").replaceChildren(...group.runs.map((run, place) => {
      const chip = make("button", { type: "button", className: "chip", style: { "--colour": colourName(place) } }, dot(place), run.name + run.marker);
      chip.setAttribute("aria-pressed", String(!page.hidden.has(place)));
      chip.addEventListener("click", () => {
        if (!page.hidden.delete(place)) page.hidden.add(place);
        chip.setAttribute("aria-pressed", String(!page.hidden.has(place)));
        draw();
      });
      return chip;
    }));
  }

  legend();
  draw();
  byId("log-scale").onchange = draw;
  page.redrawCurves = draw;
});

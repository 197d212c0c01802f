"use strict";
/* ACES: a slider that moves along the thresholds of a composition. */
page.parts.push(() => {
  const { aces, table, norm } = page.group;
  byId("aces").hidden = !aces;
  document.querySelectorAll("[data-needs='aces']").forEach((link) => { link.hidden = !aces; });
  page.redrawAces = () => {};
  if (!aces) return;
  const chart = byId("aces-chart");
  const slider = byId("theta");
  const choice = byId("composition");
  const SYMBOLS = [["diamond", "◆"], ["triangle-up", "▲"], ["square", "■"], ["star", "★"], ["triangle-down", "▼"], ["cross", "✚"]];
  const symbol = (place) => SYMBOLS[place % SYMBOLS.length];
  let curve = aces.curves[0];

  function traces() {
    const at = Number(slider.value);
    const lines = aces.curves.map((each) => ({
      name: chartText(each.name), x: each.natural, y: each.acr, customdata: each.theta, mode: "lines+markers",
      line: { width: 2, color: cssColour(`--run-${each.run % COLOURS}`) }, marker: { size: 4 },
      hovertemplate: `${chartText(each.name).replace(/%\{/g, "% {")}<br>θ %{customdata}: NAC %{x:.1f} %, ACR %{y:.3f}<extra></extra>`,
    }));
    const points = aces.points.map((point, place) => ({
      name: chartText(point.name), x: [point.natural], y: [point.acr], mode: "markers",
      marker: { size: 11, symbol: symbol(place)[0], color: cssColour(`--run-${point.run % COLOURS}`) },
      hovertemplate: `${chartText(point.name).replace(/%\{/g, "% {")}<br>NAC %{x:.1f} %, ACR %{y:.3f}<extra></extra>`,
    }));
    const chosen = {
      name: "chosen", x: [curve.natural[at]], y: [curve.acr[at]], mode: "markers", cliponaxis: false, hoverinfo: "skip",
      marker: { size: 16, color: cssColour("--card"), line: { width: 4, color: cssColour("--accent") } },
    };
    return [...lines, ...points, chosen];
  }

  /* Two points in a hundred at least, so that a difference of nothing does not look like one. */
  function naturalRange() {
    const all = [...aces.curves.flatMap((each) => each.natural), ...aces.points.map((point) => point.natural)];
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const margin = Math.max(0.06 * (high - low), (2 - (high - low)) / 2);
    return [low - margin, high + margin];
  }

  function key() {
    const entry = (mark, run, text) => make("li", {},
      make("span", { className: "symbol", textContent: mark, "aria-hidden": "true", style: { "--colour": colourName(run) } }), text);
    byId("aces-key").replaceChildren(
      ...aces.curves.map((each) => entry("━", each.run, `${each.name}, every θ; the ring is the chosen one`)),
      ...aces.points.map((point, place) => entry(symbol(place)[1], point.run, point.name)));
  }

  function draw() {
    Plotly.react(chart, traces(), chartLayout({
      hovermode: "closest",
      xaxis: { title: { text: "Natural accuracy, NAC (%)" }, range: naturalRange() },
      yaxis: { title: { text: `ACR (${norm})` }, rangemode: "tozero" },
    }), CHART_SETTINGS);
  }

  function row() {
    const at = Number(slider.value);
    byId("theta-value").textContent = curve.theta[at];
    slider.setAttribute("aria-valuetext", `θ ${curve.theta[at]}`);
    const over = make("tr", { className: "over" }, make("td", { colSpan: 3 }),
      make("th", { colSpan: table.headings.length, scope: "colgroup" }, make("span", { textContent: `Certified (%) at ${norm} radius` })));
    const head = make("tr", {}, ...["", "NAC (%)", "ACR", ...table.headings].map((heading, place) =>
      make("th", { scope: "col", textContent: heading, className: place ? "" : "text" })));
    const line = (title, lead, values) => make("tr", {},
      make("th", { scope: "row", textContent: title }), ...[...lead, ...values].map((text) => make("td", { textContent: text })));
    byId("theta-table").replaceChildren(make("thead", {}, over, head), make("tbody", {},
      line("Right answers", [curve.naturalText[at], curve.acrText[at]], curve.certified[at]),
      line("Sent to the smoothed classifier", ["–", "–"], curve.selected[at])));
  }

  function start() {
    slider.max = String(curve.theta.length - 1);
    slider.value = String(curve.start);
    row();
    draw();
  }

  key();
  choice.replaceChildren(...aces.curves.map((each, place) => option(place, each.name)));
  byId("composition-choice").hidden = aces.curves.length < 2;
  choice.onchange = () => { curve = aces.curves[Number(choice.value)]; start(); };
  slider.oninput = () => { row(); draw(); };
  start();
  page.redrawAces = draw;
});

/* The votes as bars, and the proved radius over samples as a line. */
import { NORMS, grouped, make, makeSvg, radiusText } from "./dom.js";

const BARS = 5;

/* Draw one bar for each of the classes with the most votes, and one for the rest. */
export function drawVotes(list, votes, names, samples, answer) {
  const order = votes.map((_, place) => place).sort((a, b) => votes[b] - votes[a]);
  const voted = Math.max(1, votes.filter((count) => count > 0).length);
  const few = order.slice(0, Math.min(voted, BARS));
  const rows = few.map((place) => [names[place] ?? String(place), votes[place], place === answer]);
  if (few.length < order.length) {
    const others = order.slice(few.length);
    rows.push([others.length > 1 ? `${others.length} other classes` : names[others[0]] ?? String(others[0]), others.reduce((sum, place) => sum + votes[place], 0), false]);
  }
  list.replaceChildren(...rows.map(([name, count, answered]) => {
    const fill = make("span", { className: "fill" });
    fill.style.width = `${samples ? (100 * count) / samples : 0}%`;
    return make("li", { className: answered ? "true" : "" },
      make("span", { className: "name", textContent: name, title: name }),
      make("span", { className: "bar-box", "aria-hidden": "true" }, fill),
      make("span", { className: "number", textContent: `${grouped(count)}`, "aria-label": `${count} votes` }));
  }));
}

/* A round number of at least the value, and the step between its ticks. */
function scale(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [0.2, 0.5, 1, 2].map((each) => each * power).find((each) => value / each <= 5.5);
  return [Math.ceil(value / step - 1e-9) * step, step];
}

/* Draw points of [samples, radius] as steps: a radius holds from its votes on. Dotted lines mark target radii. */
export function drawRadius(svg, points, targets, norm) {
  const width = Math.max(svg.parentElement.clientWidth, 240), height = 220;
  const left = 46, right = 14, top = 12, bottom = 40;
  const [, last] = points[points.length - 1] ?? [0, 0];
  const [across, acrossStep] = scale(Math.max(10, ...points.map(([samples]) => samples)));
  const [up, upStep] = scale(Math.max(0.05, ...targets, ...points.map(([, radius]) => radius)) * 1.05);
  const x = (samples) => left + (samples / across) * (width - left - right);
  const y = (radius) => height - bottom - (radius / up) * (height - top - bottom);
  const parts = [];
  const text = (words, attributes) => parts.push(makeSvg("text", attributes, words));
  const line = (name, x1, y1, x2, y2) => parts.push(makeSvg("line", { class: name, x1, y1, x2, y2 }));
  for (let tick = 0; tick <= up * 1.001; tick += upStep) {
    line("rule", left, y(tick), width - right, y(tick));
    text(String(Number(tick.toPrecision(3))), { x: left - 8, y: y(tick) + 4, "text-anchor": "end" });
  }
  for (let tick = 0; tick <= across * 1.001; tick += acrossStep) {
    text(grouped(Math.round(tick)), { x: x(tick), y: height - bottom + 18, "text-anchor": tick === 0 ? "start" : tick > across - acrossStep / 2 ? "end" : "middle" });
  }
  text("samples", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" });
  for (const target of targets) line("target", left, y(target), width - right, y(target));
  if (points.length) {
    const path = points.map(([samples, radius], place) => (place ? `H${x(samples)}V${y(radius)}` : `M${x(0)},${y(0)}H${x(samples)}V${y(radius)}`));
    parts.push(makeSvg("path", { class: "curve", d: path.join("") }));
    const [samples, radius] = points[points.length - 1];
    parts.push(makeSvg("circle", { class: "end", cx: x(samples), cy: y(radius), r: 4.5 }));
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const samples = points.length ? points[points.length - 1][0] : 0;
  svg.setAttribute("aria-label", `Proved ${NORMS[norm]} radius over samples: ${radiusText(last, norm)} after ${samples} samples.`);
  svg.replaceChildren(...parts);
}

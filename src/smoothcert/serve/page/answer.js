/* The answer: votes and radius while they come in, then everything that the server states. */
import { ServerError, call, events } from "./api.js";
import { drawRadius, drawVotes } from "./charts.js";
import { NORMS, byId, grouped, make, radiusText, settingsText } from "./dom.js";

const OUTCOMES = { certified: "proved", refuted: "not proved (refuted)", undecided: "not proved" };
const GUARANTEES = {
  global: "global: one smoothed classifier answers for all inputs",
  routed: "routed: the choice of the classifier that answers is certified too",
  pointwise: "pointwise: about the classifier with the noise chosen for this input",
};

/* Send an input, show how its answer arises, and return the answer; null if it was stopped or refused. */
export async function certify(model, input, options, signal) {
  const shown = new Answer(model, options.radius);
  try {
    const most = model.limits.max_bytes;
    if (input.body.size > most) {
      throw new ServerError(`The file has ${grouped(input.body.size)} bytes; this server accepts at most ${grouped(most)}.`);
    }
    const query = new URLSearchParams({ ...options, model: model.name });
    const response = await call(`v1/certify?${query}`, {
      method: "POST", body: input.body, signal, headers: { "Content-Type": input.type, Accept: "text/event-stream" },
    });
    if (!response.headers.get("Content-Type").startsWith("text/event-stream")) return shown.finish(await response.text());
    for await (const [name, text] of events(response)) {
      signal.throwIfAborted();
      if (name === "votes") shown.progress(JSON.parse(text));
      if (name === "error") throw new ServerError(JSON.parse(text).error);
      if (name === "answer") return shown.finish(text);
    }
    throw new ServerError("The connection ended before the answer; try again.");
  } catch (error) {
    shown.stop();
    if (signal.aborted) return null;
    showFailure(error instanceof ServerError ? error.message : `The page failed: ${error.message}`);
    return null;
  }
}

export function showFailure(text) {
  byId("result").hidden = byId("brief").hidden = true;
  byId("state").textContent = "";
  byId("waiting").hidden = true;
  byId("failure").hidden = false;
  byId("failure").textContent = text;
}

/* Show that there is no answer, or that it is under work. */
export function showNothing(text) {
  byId("failure").hidden = byId("result").hidden = byId("brief").hidden = true;
  byId("state").textContent = "";
  byId("waiting").hidden = false;
  byId("waiting").textContent = text;
}

class Answer {
  constructor(model, radii) {
    this.model = model;
    this.norm = model.norm;
    this.targets = radii ? radii.split(",").map(Number).filter((radius) => radius > 0) : model.targets;
    this.points = [];
    this.latest = null;
    this.frame = null;
    showNothing("Waiting for the first votes …");
  }

  progress(event) {
    this.latest = event;
    this.points.push([event.samples, event.radius]);
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (this.latest) this.draw(this.latest);
    });
  }

  draw({ samples, votes, radius, label }) {
    const leading = label ?? votes.indexOf(Math.max(...votes));
    byId("waiting").hidden = true;
    byId("failure").hidden = true;
    byId("result").hidden = false;
    byId("class-name").textContent = leading < 0 ? "abstains" : this.model.className(leading);
    byId("proved").textContent = radiusText(radius, this.norm);
    byId("samples").textContent = grouped(samples);
    byId("brief").hidden = false;
    byId("brief").textContent = `${byId("class-name").textContent}: ${NORMS[this.norm]} radius ${byId("proved").textContent}`;
    if (label === undefined) {
      byId("state").textContent = "Votes are coming in …";
      byId("sentence").textContent = "";
      byId("decisions").replaceChildren();
      byId("facts-box").hidden = true;
    }
    drawVotes(byId("votes"), votes, this.model.classes, samples, leading);
    this.redraw();
  }

  /* Draw nothing more, not even what has already arrived. */
  stop() {
    cancelAnimationFrame(this.frame);
    this.latest = null;
  }

  redraw() {
    drawRadius(byId("radius-chart"), this.points, this.targets, this.norm);
  }

  finish(text) {
    const answer = JSON.parse(text);
    this.stop();
    this.norm = answer.norm ?? this.norm;
    this.targets = answer.decisions.map(({ radius }) => radius);
    const last = this.points[this.points.length - 1];
    if (!last || last[0] < answer.samples || last[1] !== answer.radius) this.points.push([answer.samples, answer.radius]);
    this.draw(answer);
    for (const element of document.querySelectorAll(".norm")) element.textContent = NORMS[this.norm];
    byId("state").textContent = "";
    byId("sentence").textContent = answer.sentence;
    byId("decisions").replaceChildren(...answer.decisions.map(({ radius, outcome }) => make("li", {
      className: `chip ${outcome}`, textContent: `${NORMS[this.norm]} ${radius}: ${OUTCOMES[outcome] ?? outcome}`,
    })));
    this.facts(answer, text);
    return { ...answer, redraw: () => this.redraw() };
  }

  facts(answer, text) {
    const known = {
      Outcome: answer.outcome,
      Guarantee: GUARANTEES[answer.guarantee] ?? answer.guarantee,
      Arithmetic: answer.arithmetic === "float" ? "float: the rounding of sums is not covered by the proof" : answer.arithmetic,
      α: answer.alpha,
      Noise: settingsText(answer.noise),
      Procedure: settingsText(answer.procedure),
      "Image file": answer.input.changes.join("; "),
      Seed: answer.seed,
      Index: answer.index,
      Model: answer.model?.name,
      Identity: answer.model?.identity,
      Time: `${answer.seconds.total.toFixed(3)} s, of which ${answer.seconds.queue.toFixed(3)} s in the queue`,
    };
    const rows = Object.entries(known).filter(([, value]) => value !== undefined && value !== null && value !== "");
    byId("facts").replaceChildren(...rows.flatMap(([name, value]) => [
      make("dt", { textContent: name }), make("dd", { textContent: String(value) })]));
    const save = byId("save");
    if (save.href) URL.revokeObjectURL(save.href);
    save.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    byId("facts-box").hidden = false;
  }
}

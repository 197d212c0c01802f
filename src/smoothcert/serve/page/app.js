/* Puts the page together: the served models, the input, its answer, and changes of the input. */
import { certify, showFailure, showNothing } from "./answer.js";
import { ServerError, getJson } from "./api.js";
import { watchChanges } from "./change.js";
import { NORMS, byId, make, settingsText } from "./dom.js";
import { watchInput } from "./input.js";

let model = null, input = null, answer = null, running = new AbortController();

const changes = watchChanges();
const stage = watchInput((given) => {
  input = given;
  stop();
  byId("certify").disabled = input === null;
  if (input) start();
  else showNothing("The answer appears here.");
});

function stop() {
  running.abort();
  running = new AbortController();
  answer = null;
  changes.hide();
}

async function start() {
  stop();
  const { signal } = running;
  const [asked, settings] = [input, options()];
  const found = await certify(model, asked, settings, signal);
  if (found === null || signal.aborted) return;
  answer = found;
  changes.offer(model, asked, found);
}

/* The settings that are not empty. */
function options() {
  const given = ["radius", "alpha", "deadline"].map((name) => [name, byId(name).value.replace(/\s/g, "")]);
  return Object.fromEntries(given.filter(([, value]) => value !== ""));
}

/* The accuracy that a model records, in a sentence. */
function measured(found) {
  if (typeof found?.certified !== "number") return "";
  const where = `${found.inputs ? `${found.inputs} inputs of ` : ""}${found.dataset ?? "its data"}`;
  return ` Measured in training on ${where}: ${(100 * found.certified).toFixed(1)} % certified${found.radius ? ` at radius ${found.radius}` : ""}.`;
}

/* What the page needs of a served model. */
function described(served) {
  const classes = served.class_names ?? [];
  const { radius } = served.procedure;
  return {
    name: served.name,
    classes,
    className: (label) => classes[label] ?? String(label),
    shape: served.input_shape,
    isImage: served.input_shape.length === 3,
    draws: served.input_shape.length === 3 && served.input_shape[0] === 1,
    steps: served.noise.grid ?? served.noise.levels ?? 255,
    norm: served.norms[0],
    scale: served.sigma,
    limits: served.limits,
    procedure: served.procedure,
    targets: [radius ?? []].flat(),
    about: `${served.name}: inputs of ${served.input_shape.join(" × ")} values, noise ${settingsText(served.noise)}, procedure ${settingsText(served.procedure)}.${measured(served.measured)}`,
  };
}

function use(chosen) {
  model = chosen;
  for (const element of document.querySelectorAll(".norm")) element.textContent = NORMS[model.norm];
  byId("served").textContent = model.about;
  byId("radius").placeholder = model.targets.join(", ") || "as large as possible";
  byId("alpha").placeholder = `${model.procedure.alpha}; at most ${model.limits.max_alpha}`;
  byId("deadline").placeholder = `${model.procedure.deadline ?? "none"}; at most ${model.limits.max_deadline}`;
  stage.use(model);
}

byId("input").addEventListener("submit", (event) => {
  event.preventDefault();
  if (input) start();
});
byId("theme").addEventListener("click", () => {
  const { dataset } = document.documentElement;
  dataset.theme = dataset.theme === "dark" ? "light" : "dark";
  nameTheme();
});
const nameTheme = () => { byId("theme").textContent = document.documentElement.dataset.theme === "dark" ? "Light" : "Dark"; };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
nameTheme();
new ResizeObserver(() => answer?.redraw()).observe(byId("answer"));

/* Ask for the models until the server is ready. */
async function servedModels() {
  for (;;) {
    try {
      return (await getJson("v1/model")).models.map(described);
    } catch (error) {
      if (error.status !== 503) throw error;
      showNothing("The server is starting …");
      await new Promise((resolve) => { setTimeout(resolve, 1000); });
    }
  }
}

try {
  const models = await servedModels();
  byId("model-choice").hidden = models.length < 2;
  byId("model").replaceChildren(...models.map(({ name }) => make("option", { value: name, textContent: name })));
  byId("model").addEventListener("change", (event) => use(models.find(({ name }) => name === event.target.value)));
  use(models[0]);
} catch (error) {
  if (!(error instanceof ServerError)) throw error;
  showFailure(error.message);
}

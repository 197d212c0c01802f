/* Noisy copies of the input, and the answer at a changed input inside and outside of the proved radius. */
import { ServerError, getJson } from "./api.js";
import { drawVotes } from "./charts.js";
import { NORMS, byId, make, radiusText, settingsText } from "./dom.js";

const COPIES = 11;
const PAUSE = 150; // milliseconds without a move of the slider until the changed input is classified

export function watchChanges() {
  let now = null; // { model, input, answer }
  let seed = 0, timer = null, running = new AbortController();

  const post = (path, query) => getJson(`${path}?${new URLSearchParams({ ...query, model: now.model.name })}`, {
    method: "POST", body: now.input.body, signal: running.signal, headers: { "Content-Type": now.input.type },
  });
  /* Run a request; say in an element what went wrong, unless a newer request has taken its place. */
  const attempt = async (element, work) => {
    const { signal } = running;
    try {
      await work();
    } catch (error) {
      if (!signal.aborted) element.textContent = error instanceof ServerError ? error.message : `The page failed: ${error.message}`;
    }
  };
  const inside = (size) => (now.answer.norm === "l0" ? size <= now.answer.radius : size < now.answer.radius) && now.answer.label >= 0;
  const size = () => Number(byId("size").value);
  const sizeText = (value) => (now.answer.norm === "l0" ? String(value) : value.toFixed(3));

  function describe() {
    const { radius, norm, label } = now.answer;
    const isInside = inside(size());
    byId("size-text").textContent = `${NORMS[norm]} ${sizeText(size())}`;
    byId("place").textContent = isInside ? "Inside the proved radius: the answer stays." : "Outside the proved radius: not proved.";
    if (label < 0) byId("place").textContent = "No class was certified, so nothing is proved at any size.";
    byId("place").classList.toggle("inside", isInside);
    byId("size").setAttribute("aria-valuetext", `${sizeText(size())}, ${isInside ? "inside" : "outside"} the proved radius ${radiusText(radius, norm)}`);
  }

  async function showCopies() {
    const found = await post("page/copies", { count: COPIES });
    const pictures = [["The input as the model gets it", found.input], ...found.copies.map((copy, at) => [`Noisy copy ${at + 1}`, copy])];
    byId("noise").textContent = settingsText(found.noise);
    byId("copy-grid").replaceChildren(...pictures.map(([alt, src]) => make("li", {}, make("img", { alt, src }))));
    byId("copies").hidden = false;
  }

  async function showChange() {
    const { answer, model } = now;
    const isInside = inside(size());
    const query = { size: size(), norm: answer.norm, direction: byId("direction").value, seed };
    const found = await post("page/perturb", { ...query, label: answer.label < 0 ? answer.votes.indexOf(Math.max(...answer.votes)) : answer.label });
    byId("changed-picture").src = found.image;
    byId("change-picture").src = found.change;
    byId("pictures").hidden = false;
    byId("verdict").textContent = verdict(found, answer, model, isInside);
    drawVotes(byId("changed-votes"), found.votes, model.classes, found.samples, found.label);
  }

  function verdict(found, answer, model, isInside) {
    const votes = `${found.samples} noisy copies of this changed input`;
    const certified = model.className(answer.label);
    if (isInside) {
      const proof = `The certificate proves that the answer is ${certified} for every change of this size.`;
      if (found.label < 0) return `${proof} ${votes} do not decide, which does not contradict it.`;
      if (found.label === answer.label) return `${proof} ${votes} agree.`;
      return `${votes} decide for ${model.className(found.label)}, which contradicts the certificate: one of the two is wrong, each with probability at most α. Please report this if it happens often.`;
    }
    const open = answer.label < 0 ? "No class was certified." : "The certificate says nothing about changes of this size.";
    if (found.label < 0) return `${open} ${votes} do not decide.`;
    if (found.label === answer.label) return `${open} At this one input the answer is still ${certified}; at others of the same size it may differ.`;
    return `${open} At this input the answer is ${model.className(found.label)}.`;
  }

  function restart(pause) {
    clearTimeout(timer);
    running.abort();
    running = new AbortController();
    timer = setTimeout(() => attempt(byId("verdict"), showChange), pause);
  }

  byId("size").addEventListener("input", () => { describe(); restart(PAUSE); });
  byId("direction").addEventListener("change", () => {
    byId("other-direction").disabled = byId("direction").value !== "random";
    restart(0);
  });
  byId("other-direction").addEventListener("click", () => { seed += 1; restart(0); });
  byId("more-copies").addEventListener("click", () => attempt(byId("noise"), showCopies));

  return {
    hide() {
      clearTimeout(timer);
      running.abort();
      byId("copies").hidden = byId("perturbation").hidden = true;
    },
    /* Offer changes of an input that has an answer. */
    offer(model, input, answer) {
      this.hide();
      now = { model, input, answer };
      running = new AbortController();
      const whole = answer.norm === "l0";
      const usual = answer.radius > 0 ? 2 * answer.radius : model.scale;
      const largest = whole ? Math.max(4, Math.ceil(usual)) : usual;
      Object.assign(byId("size"), { max: largest, step: whole ? 1 : largest / 200, value: 0 });
      byId("size").style.setProperty("--edge", `${(100 * answer.radius) / largest}%`);
      byId("edge").textContent = answer.radius > 0 ? `proved radius ${radiusText(answer.radius, answer.norm)}` : "";
      byId("largest").textContent = sizeText(largest);
      byId("pictures").hidden = true;
      byId("changed-votes").replaceChildren();
      describe();
      byId("verdict").textContent = "Move the slider.";
      if (!model.isImage || answer.guarantee === "pointwise") return; // no pictures, or another noise at each input
      byId("perturbation").hidden = false;
      attempt(byId("noise"), showCopies);
    },
  };
}

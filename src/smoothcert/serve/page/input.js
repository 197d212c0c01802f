/* The input: a file that was dropped, pasted or chosen, or a drawing. */
import { byId } from "./dom.js";
import { makePad } from "./drawing.js";

const PAUSE = 700; // milliseconds without the pen until a drawing is certified
const TINY = 64; // pixels below which a picture is enlarged without smoothing

/* Watch the elements of the input, and call onInput with { body, type } or null whenever it changes. */
export function watchInput(onInput) {
  const [stage, canvas, picture, file] = ["stage", "pad", "picture", "file"].map(byId);
  let model = null, timer = null;

  const show = (address) => {
    if (picture.src) URL.revokeObjectURL(picture.src);
    picture.hidden = address === null;
    if (address === null) picture.removeAttribute("src");
    else picture.src = address;
  };
  const say = (text) => {
    byId("empty").hidden = text === null;
    byId("empty").textContent = text ?? "";
  };
  const change = (input) => {
    clearTimeout(timer);
    byId("clear").disabled = input === null;
    onInput(input);
  };
  const pad = makePad(canvas, () => {
    clearTimeout(timer);
    say(null);
    change(null);
    byId("clear").disabled = false;
  }, () => {
    timer = setTimeout(() => {
      const [, height, width] = model.shape;
      const rows = pad.read(height, width, model.steps);
      if (rows) change({ body: JSON.stringify({ input: [rows] }), type: "application/json" });
    }, PAUSE);
  });
  const clear = () => {
    pad.clear();
    show(null);
    say(model?.draws ? "Draw here, or drop an image" : "Drop an image here");
    for (const each of [file, byId("camera")]) each.value = "";
    change(null);
  };
  const take = (chosen) => {
    if (!chosen) return;
    clear();
    const isArray = chosen.name.endsWith(".npy");
    if (!isArray) show(URL.createObjectURL(chosen));
    say(chosen.name);
    change({ body: chosen, type: isArray ? "application/x-npy" : chosen.type || "image/unknown" });
  };

  picture.addEventListener("load", () => {
    picture.classList.toggle("tiny", Math.max(picture.naturalWidth, picture.naturalHeight) <= TINY);
    say(null);
  });
  picture.addEventListener("error", () => { picture.hidden = true; }); // the server may still read it
  for (const each of [file, byId("camera")]) each.addEventListener("change", () => take(each.files[0]));
  byId("clear").addEventListener("click", clear);
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      stage.classList.toggle("over", name === "dragover");
      if (name === "drop") take(event.dataTransfer.files[0]);
    });
  }
  document.addEventListener("paste", (event) => take(event.clipboardData.files[0]));

  return {
    clear,
    /* Show the pad for models that can be drawn for. */
    use(chosen) {
      model = chosen;
      canvas.hidden = !model.draws;
      byId("input-hint").textContent = model.draws
        ? "Draw a digit, or drop, paste or choose an image. A drawing is centred and scaled to the size of the model's input."
        : "Drop, paste or choose an image.";
      clear();
    },
  };
}

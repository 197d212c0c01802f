/* The pad to draw on, and how a drawing becomes an input of the model: white on black, centred, as in MNIST. */
const FINE = 8; // pixels of the enlarged drawing for each pixel of the input, in each direction

/* Let people draw on a canvas; call onStart at the first point of a stroke and onEnd at the last. */
export function makePad(canvas, onStart, onEnd) {
  const context = canvas.getContext("2d", { willReadFrequently: true });
  let last = null;
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * canvas.width, ((event.clientY - box.top) / box.height) * canvas.height];
  };
  const stroke = (event) => {
    const to = point(event);
    context.beginPath();
    context.moveTo(...last);
    context.lineTo(...to);
    context.stroke();
    last = to;
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    canvas.setPointerCapture(event.pointerId);
    onStart();
    last = point(event);
    stroke(event);
  });
  canvas.addEventListener("pointermove", (event) => { if (last) stroke(event); });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, () => {
      if (last) onEnd();
      last = null;
    });
  }
  const clear = () => {
    Object.assign(context, { lineWidth: canvas.width * 0.08, lineCap: "round", lineJoin: "round", strokeStyle: "#fff" });
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
  };
  clear();
  return { clear, read: (height, width, steps) => readDrawing(canvas, height, width, steps) };
}

/* Return rows of values in [0, 1] in whole steps, or null if nothing is drawn. */
function readDrawing(canvas, height, width, steps) {
  const box = inkBox(canvas);
  if (box === null) return null;
  // Small inputs, as those of the bundled digits, fill the image; MNIST has digits of 20 in images of 28 pixels.
  const side = Math.min(height, width);
  const size = side <= 16 ? side : Math.round((side * 5) / 7);
  const enlarged = document.createElement("canvas");
  enlarged.width = enlarged.height = size * FINE;
  const context = enlarged.getContext("2d", { willReadFrequently: true });
  const factor = (size * FINE) / Math.max(box.width, box.height);
  context.drawImage(canvas, box.left, box.top, box.width, box.height,
    (size * FINE - box.width * factor) / 2, (size * FINE - box.height * factor) / 2, box.width * factor, box.height * factor);
  const { data } = context.getImageData(0, 0, size * FINE, size * FINE);
  const mean = (row, column) => {
    let sum = 0;
    for (let y = row * FINE; y < (row + 1) * FINE; y += 1) {
      for (let x = column * FINE; x < (column + 1) * FINE; x += 1) sum += data[4 * (y * size * FINE + x)];
    }
    return sum / (FINE * FINE * 255);
  };
  const top = Math.floor((height - size) / 2), left = Math.floor((width - size) / 2);
  const inside = (at) => at >= 0 && at < size;
  return Array.from({ length: height }, (_, row) => Array.from({ length: width }, (_, column) => (
    inside(row - top) && inside(column - left) ? Math.round(mean(row - top, column - left) * steps) / steps : 0)));
}

/* The smallest rectangle around everything drawn. */
function inkBox(canvas) {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  let [left, top, right, bottom] = [width, height, -1, -1];
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      if (data[4 * (y * width + x)] < 64) continue;
      [left, right] = [Math.min(left, x), Math.max(right, x)];
      [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
    }
  }
  return right < 0 ? null : { left, top, width: right - left + 1, height: bottom - top + 1 };
}

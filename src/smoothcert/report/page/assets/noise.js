"use strict";
/* Images and fresh noise of a run's kind: an illustration of what the classifier saw, not the noise of the run. */
const sheets = new Map();

/* The sheet that holds an input, decoded when it is first needed. */
function sheetOf(place) {
  const key = `sheet-${report.groups.indexOf(page.group)}-${Math.floor(place / page.group.images.perSheet)}`;
  if (!sheets.has(key)) {
    const image = new Image();
    image.src = `data:image/webp;base64,${byId(key).textContent}`;
    sheets.set(key, image.decode().then(() => image));
  }
  return sheets.get(key);
}

/* Draw the image of an input on a canvas of its own size. */
async function drawImage(canvas, place) {
  const { width, height, across, perSheet } = page.group.images;
  const sheet = await sheetOf(place);
  const tile = place % perSheet;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(sheet, (tile % across) * width, Math.floor(tile / across) * height, width, height, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

function gaussian() {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}

/* One coordinate under noise, from and to [0, 1] but for what leaves it. */
function noisyValue(noise, value) {
  if (noise.name === "gaussian") return value + noise.sigma * gaussian();
  if (noise.name === "uniform") return value + noise.lam * (2 * Math.random() - 1);
  if (Math.random() < noise.keep) return value;
  const level = Math.round(value * noise.levels);
  return ((level + 1 + Math.floor(Math.random() * noise.levels)) % (noise.levels + 1)) / noise.levels;
}

function drawNoisy(canvas, pixels, noise) {
  const { width, height, data } = pixels;
  const copy = new ImageData(width, height);
  for (let at = 0; at < data.length; at += 4) {
    for (let channel = 0; channel < 3; channel += 1) {
      const repeated = channel > 0 && page.group.images.grey;
      copy.data[at + channel] = repeated ? copy.data[at] : 255 * noisyValue(noise, data[at + channel] / 255);
    }
    copy.data[at + 3] = 255;
  }
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(copy, 0, 0);
}

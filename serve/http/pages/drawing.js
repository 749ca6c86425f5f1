// The picture with what was found in it: boxes with their names, or a mask laid over, and a legend.

import {counted, element, percent} from "./elements.js";

const TALLEST = 480;
const MOST_ENLARGED = 4;
const MOST_LISTED = 12;
const OPACITY = 140; // of a mask, of 255

const NAMES = {boxes: ["box", "boxes"], mask: ["class", "classes"]};

// What was found: boxes or classes, in the answer's order, which is that of their colours in the mask.
function entries(found) { return found.boxes.length > 0 ? found.boxes : found.classes; }

function nameOf(entry) { return entry.label || `class ${entry.class}`; }

function numberOf(entry) { return entry.share === undefined ? entry.score.toFixed(2) : percent(entry.share); }

function foundText({kind, predictions}) { return counted(entries(predictions[0]).length, ...NAMES[kind]); }

// One sentence for those who don't see the picture.
export function spokenText(answer) {
  const names = entries(answer.predictions[0]).slice(0, 3).map((entry) => `${nameOf(entry)} ${numberOf(entry)}`);
  return names.length === 0 ? foundText(answer) : `${foundText(answer)}: ${names.join(", ")}`;
}

// The elements of an answer with boxes or a mask; `width` is the room for the picture, in CSS pixels.
export function drawnPicture(answer, sent, width) {
  const found = answer.predictions[0];
  const canvas = element("canvas", {class: "drawn", id: "drawn", role: "img", "aria-label": spokenText(answer)});
  draw(canvas, found, sent, width);
  return [
    element("p", {class: "best found", id: "best"}, element("strong", {}, foundText(answer)),
      element("span", {}, `in ${found.width} x ${found.height} pixels`)),
    element("figure", {}, canvas), ...legend(found),
    element("p", {class: "help", id: "rule"}, `Read as ${answer.kind}: ${answer.rule}.`),
  ];
}

function legend(found) {
  const all = entries(found);
  if (all.length === 0) return [];
  const rows = all.slice(0, MOST_LISTED).map((entry) => {
    const swatch = element("span", {class: "swatch", "aria-hidden": "true"});
    swatch.style.background = entry.color;
    return element("li", {}, swatch, element("span", {class: "name"}, nameOf(entry)), element("span", {class: "number"}, numberOf(entry)));
  });
  const rest = all.length - rows.length;
  return [element("ul", {class: "legend", id: "legend", "aria-label": "Legend"}, ...rows),
    ...(rest > 0 ? [element("p", {class: "help"}, `And ${counted(rest, "more", "more")}; the whole answer has all.`)] : [])];
}

async function draw(canvas, found, sent, width) {
  const scale = Math.min(width / found.width, TALLEST / found.height, MOST_ENLARGED);
  const sharp = window.devicePixelRatio || 1;
  Object.assign(canvas, {width: Math.max(1, Math.round(found.width * scale * sharp)), height: Math.max(1, Math.round(found.height * scale * sharp))});
  canvas.style.width = `${Math.round(found.width * scale)}px`;
  const brush = canvas.getContext("2d");
  const photo = await createImageBitmap(new Blob([sent.body], {type: sent.type})).catch(() => null);
  if (photo !== null) brush.drawImage(photo, 0, 0, canvas.width, canvas.height);
  if (found.mask !== null) await layOver(brush, found);
  brush.scale(scale * sharp, scale * sharp);
  // The best boxes last: they cover the others.
  const boxes = [...found.boxes].reverse();
  for (const entry of boxes) outline(brush, entry, 1 / scale);
  for (const entry of boxes) tag(brush, entry, 1 / scale, found);
  canvas.dataset.done = "true";
}

async function layOver(brush, found) {
  const {width, height, png} = found.mask;
  const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], {type: "image/png"}), {colorSpaceConversion: "none"});
  const layer = new OffscreenCanvas(width, height);
  const under = layer.getContext("2d");
  under.drawImage(image, 0, 0);
  const pixels = under.getImageData(0, 0, width, height);
  const colors = [[0, 0, 0, 0], ...entries(found).map(({color}) => [...[1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)), OPACITY])];
  for (let place = 0; place < pixels.data.length; place += 4) pixels.data.set(colors[pixels.data[place]] ?? colors[0], place);
  under.putImageData(pixels, 0, 0);
  brush.imageSmoothingEnabled = false;
  brush.drawImage(layer, 0, 0, brush.canvas.width, brush.canvas.height);
}

function outline(brush, {box: [left, top, right, bottom], color}, pixel) {
  Object.assign(brush, {strokeStyle: color, lineWidth: 2 * pixel});
  brush.strokeRect(left, top, right - left, bottom - top);
}

function tag(brush, entry, pixel, {width, height}) {
  const text = `${nameOf(entry).slice(0, 40)} ${numberOf(entry)}`;
  Object.assign(brush, {font: `${12 * pixel}px system-ui, sans-serif`, textBaseline: "middle"});
  const [wide, tall] = [brush.measureText(text).width + 8 * pixel, 17 * pixel];
  const x = Math.max(0, Math.min(entry.box[0], width - wide));
  const y = Math.max(0, Math.min(entry.box[1] - tall, height - tall));
  brush.fillStyle = entry.color;
  brush.fillRect(x, y, wide, tall);
  brush.fillStyle = isLight(entry.color) ? "#000000" : "#ffffff";
  brush.fillText(text, x + 4 * pixel, y + tall / 2);
}

function isLight(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 130;
}

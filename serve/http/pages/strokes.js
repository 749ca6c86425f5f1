// A drawing as the small grey picture that a model takes. A drawing is a list of strokes, a stroke a list of [x, y];
// it is kept as lines, not as pixels, so that it can be brought to the size, place and line width of what the model learnt.

// How digits stand in the pictures of a data set: the part of its width and height that they take, and the line's width.
// optdigits (8x8) fills the height, stretches all but ones to one width, straightens what leans, and thickens or thins
// the lines until about the same share of the picture is ink. Its own numbers are in models/digits_test.npz: 19.5 of 64
// pixels. The width and how much to straighten are those at which most of the drawings that were tried are recognised.
// MNIST (28x28) puts the digit into 20x20 as it is, and its mass in the middle.
const OPTDIGITS = {wide: 19 / 32, tall: 1, ink: 19.5 / 64, thinnest: 2.5 / 32, thickest: 10 / 32, straighten: 0.6, thin: 0.4};
const MNIST = {wide: 20 / 28, tall: 20 / 28, thick: 2.6 / 28};

// Points that a pixel is made of, each way; optdigits' pixels are counts of 4x4 points, too.
const POINTS = 4;

// The picture: `height` rows of `width` values of 0 to 255, bright lines on a dark ground.
export function picture(strokes, width, height) {
  if (strokes.length === 0) return new Uint8Array(width * height);
  const size = [width * POINTS, height * POINTS];
  const bitmap = width === 8 && height === 8 ? likeOptdigits(strokes, size) : likeMnist(strokes, size);
  return counted(bitmap, width, height);
}

// The line's width is looked for between two bounds, so that the right share of the picture is ink.
function likeOptdigits(strokes, size) {
  const straight = straightened(strokes, OPTDIGITS.straighten);
  let [thin, thick] = [OPTDIGITS.thinnest * size[1], OPTDIGITS.thickest * size[1]];
  let bitmap;
  for (let k = 0; k < 8; k++) {
    const middle = (thin + thick) / 2;
    bitmap = inked(fitted(straight, OPTDIGITS, size, middle), size, middle);
    const ink = bitmap.reduce((sum, point) => sum + point, 0) / bitmap.length;
    if (ink < OPTDIGITS.ink) thin = middle;
    else thick = middle;
  }
  return bitmap;
}

function likeMnist(strokes, size) {
  const thick = MNIST.thick * size[1];
  const bitmap = inked(fitted(strokes, MNIST, size, thick), size, thick);
  return shifted(bitmap, size, fromMiddle(bitmap, size));
}

// Rows moved sideways so that the leftmost ink at the top and at the bottom come nearer to one line.
function straightened(strokes, share) {
  const [, top, , bottom] = box(strokes);
  const tall = bottom - top;
  if (tall === 0) return strokes;
  const points = strokes.flatMap((stroke) => stroke.flatMap((end, k) => between(stroke[Math.max(0, k - 1)], end)));
  const leftmost = (inside) => least(points.filter(([, y]) => inside(y)).map(([x]) => x));
  const lean = leftmost((y) => y >= bottom - 0.1 * tall) - leftmost((y) => y <= top + 0.1 * tall);
  return strokes.map((stroke) => stroke.map(([x, y]) => [x - share * lean * (y - top) / tall, y]));
}

function between([x0, y0], [x1, y1]) {
  return Array.from({length: 20}, (_, k) => [x0 + (x1 - x0) * k / 19, y0 + (y1 - y0) * k / 19]);
}

// The strokes moved and scaled into the frame, in points; lines of width `thick` stay inside.
function fitted(strokes, frame, [across, down], thick) {
  const [left, top, right, bottom] = box(strokes);
  const [wide, tall] = [right - left, bottom - top];
  const fits = [(frame.wide * across - thick) / wide, (frame.tall * down - thick) / tall];
  const stretched = wide > frame.thin * tall && tall > 0;
  const [x, y] = (stretched ? fits : [Math.min(...fits), Math.min(...fits)]).map((by) => (Number.isFinite(by) ? by : 0));
  const middle = [(left + right) / 2, (top + bottom) / 2];
  return strokes.map((stroke) =>
    stroke.map((point) => [(point[0] - middle[0]) * x + across / 2, (point[1] - middle[1]) * y + down / 2]));
}

function box(strokes) {
  const [xs, ys] = [0, 1].map((axis) => strokes.flat().map((point) => point[axis]));
  return [least(xs), least(ys), most(xs), most(ys)];
}

function least(values) { return values.reduce((a, b) => Math.min(a, b), Infinity); }
function most(values) { return values.reduce((a, b) => Math.max(a, b), -Infinity); }

// Which points lie within half a line's width of a stroke.
function inked(strokes, size, thick) {
  const bitmap = new Uint8Array(size[0] * size[1]);
  for (const stroke of strokes) {
    stroke.forEach((end, k) => inkLine(bitmap, size, stroke[Math.max(0, k - 1)], end, thick / 2));
  }
  return bitmap;
}

function inkLine(bitmap, size, start, end, reach) {
  const first = (axis) => Math.max(0, Math.floor(Math.min(start[axis], end[axis]) - reach));
  const past = (axis) => Math.min(size[axis], Math.ceil(Math.max(start[axis], end[axis]) + reach));
  for (let y = first(1); y < past(1); y++) {
    for (let x = first(0); x < past(0); x++) {
      if (distance([x + 0.5, y + 0.5], start, end) <= reach) bitmap[y * size[0] + x] = 1;
    }
  }
}

// From a point to the line between two others.
function distance([x, y], [x0, y0], [x1, y1]) {
  const [dx, dy] = [x1 - x0, y1 - y0];
  const length = dx * dx + dy * dy;
  const along = length === 0 ? 0 : Math.min(1, Math.max(0, ((x - x0) * dx + (y - y0) * dy) / length));
  return Math.hypot(x - x0 - along * dx, y - y0 - along * dy);
}

// How far to move the ink so that its mass is in the middle, in whole points.
function fromMiddle(bitmap, [across, down]) {
  let [mass, x, y] = [0, 0, 0];
  bitmap.forEach((ink, k) => {
    mass += ink;
    x += ink * (k % across + 0.5);
    y += ink * (Math.floor(k / across) + 0.5);
  });
  return mass === 0 ? [0, 0] : [Math.round(across / 2 - x / mass), Math.round(down / 2 - y / mass)];
}

function shifted(bitmap, [across, down], [dx, dy]) {
  const moved = new Uint8Array(bitmap.length);
  bitmap.forEach((ink, k) => {
    const [x, y] = [k % across + dx, Math.floor(k / across) + dy];
    if (ink && x >= 0 && x < across && y >= 0 && y < down) moved[y * across + x] = 1;
  });
  return moved;
}

// Each pixel is the share of its points that are inked.
function counted(bitmap, width, height) {
  const counts = new Uint16Array(width * height);
  bitmap.forEach((ink, k) => {
    const [x, y] = [k % (width * POINTS), Math.floor(k / (width * POINTS))];
    counts[Math.floor(y / POINTS) * width + Math.floor(x / POINTS)] += ink;
  });
  return Uint8Array.from(counts, (count) => Math.round(255 * count / POINTS ** 2));
}

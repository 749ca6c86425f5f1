// The roofline: what the target allows at each number of operations a byte of HBM traffic, and where the kernel stands.

const SPACE = {left: 52, right: 16, top: 26, bottom: 40};

function svgElement(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.append(text);
  return made;
}

const LABELLED = 8;

function drawRoofline(place) {
  const {intensity, achieved, peak, bandwidth, steps} = report.roofline;
  const usable = [intensity, achieved, peak, bandwidth].every((value) => value !== null && value > 0);
  if (!usable) {
    place.replaceChildren(element("p", {}, "No roofline: the kernel multiplies nothing, or moves nothing."));
    return;
  }
  const points = steps.map((point, step) => ({step, point})).filter(({point}) => point !== null);
  const scale = rooflineScale(place.clientWidth, intensity, achieved, peak, bandwidth, points);
  const svg = svgElement("svg", {viewBox: `0 0 ${scale.width} ${scale.height}`, role: "group", "aria-label": `Roofline. ${rooflineText()}`});
  drawDecades(svg, scale);
  const labels = new Labels(svg, scale);
  drawRoof(svg, scale, peak, bandwidth, labels);
  drawKernelPoint(svg, scale, intensity, achieved, peak, bandwidth);
  for (const {step, point} of points) drawStepPoint(svg, scale, step, point);
  for (const {point} of points) labels.keepFree(scale.x(point[0]), scale.y(point[1]), 6);
  labels.keepFree(scale.x(intensity), scale.y(achieved), 8);
  keepRoofFree(labels, scale, peak, bandwidth);
  labels.add("whole kernel", scale.x(intensity), scale.y(achieved), 11, "strong");
  points.sort((a, b) => report.steps[b.step].time - report.steps[a.step].time);
  for (const {step, point} of points.slice(0, LABELLED)) labels.add(report.steps[step].name, scale.x(point[0]), scale.y(point[1]), 9, "point-name");
  place.replaceChildren(svg, element("p", {}, rooflineText()), element("p", {}, pointsText(points.length)));
}

function rooflineText() {
  const {intensity, achieved, peak, bandwidth} = report.roofline;
  const attainable = Math.min(peak, intensity * bandwidth / 1000);
  const bound = attainable < peak ? "HBM bandwidth" : "the tensor engine";
  return `The whole kernel: ${digits(intensity)} FLOP/byte, under the roof of ${bound}; ${digits(achieved)} of ${digits(attainable)} TFLOP/s ` +
    `(${(100 * achieved / attainable).toFixed(1)} %).`;
}

function pointsText(points) {
  const rest = report.steps.length - points;
  const shown = `${points} ${points === 1 ? "step is a point" : "steps are points"}`;
  return rest > 0 ? `${shown}; ${rest.toLocaleString("en-US")} more ${rest === 1 ? "multiplies nothing, or moves" : "multiply nothing, or move"} no bytes of HBM.` : `${shown}.`;
}

function digits(value) { return value.toLocaleString("en-US", {maximumSignificantDigits: 3}); }

// Texts beside points that cover neither each other nor a point.
class Labels {
  constructor(svg, scale) {
    Object.assign(this, {svg, scale, taken: []});
    this.canvas = document.createElement("canvas").getContext("2d");
  }

  keepFree(x, y, radius) { this.taken.push({x: x - radius, y: y - radius, width: 2 * radius, height: 2 * radius}); }

  // At the first free place around a point; nowhere if there is none.
  add(text, x, y, radius, kind) {
    this.canvas.font = `620 12px ${theme.sans}`;
    const name = fitted(this.canvas, text, 150);
    const wide = this.canvas.measureText(name).width + 4;
    const tops = [y - 8, y - 8 - radius - 5, y - 8 + radius + 5, y - 8 - 2 * radius - 9, y - 8 + 2 * radius + 9];
    const places = tops.flatMap((top) => [{x: x + radius, y: top}, {x: x - radius - wide, y: top}, {x: x - wide / 2, y: top}]);
    const free = places.map((place) => ({...place, width: wide, height: 16})).find((place) => this.isFree(place));
    if (free === undefined) return;
    this.put(name, free, kind);
  }

  put(text, box, kind) {
    this.taken.push(box);
    this.svg.append(svgElement("text", {x: box.x + 2, y: box.y + 12, class: kind}, text));
  }

  isFree({x, y, width, height}) {
    if (x < SPACE.left || x + width > this.scale.width - 2 || y < SPACE.top || y + height > this.scale.height - SPACE.bottom) return false;
    return this.taken.every((one) => x + width <= one.x || one.x + one.width <= x || y + height <= one.y || one.y + one.height <= y);
  }
}

// Where an (intensity, TFLOP/s) stands in the picture; both axes are whole decades.
function rooflineScale(width, intensity, achieved, peak, bandwidth, points) {
  const across = [intensity, peak * 1000 / bandwidth, ...points.map(({point}) => point[0])];
  const up = [achieved, peak, ...points.map(({point}) => point[1])];
  const [x0, x1] = decades(Math.min(...across) / 2, Math.max(...across) * 4);
  const [y0, y1] = decades(Math.min(...up) / 2, peak * 1.5);
  const height = Math.max(260, Math.min(360, width * 0.6));
  const [inner, tall] = [width - SPACE.left - SPACE.right, height - SPACE.top - SPACE.bottom];
  return {
    width, height, x0, x1, y0, y1,
    x: (value) => SPACE.left + (Math.log10(value) - x0) / (x1 - x0) * inner,
    y: (value) => SPACE.top + (1 - (Math.log10(value) - y0) / (y1 - y0)) * tall,
  };
}

function decades(least, most) { return [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))]; }

function drawDecades(svg, scale) {
  const {x, y, x0, x1, y0, y1} = scale;
  for (let power = x0; power <= x1; power++) {
    const at = x(10 ** power);
    svg.append(svgElement("line", {class: "grid", x1: at, x2: at, y1: y(10 ** y0), y2: y(10 ** y1)}));
    svg.append(svgElement("text", {x: at, y: y(10 ** y0) + 17, "text-anchor": power === x1 ? "end" : "middle"}, decadeText(power)));
  }
  for (let power = y0; power <= y1; power++) {
    const at = y(10 ** power);
    svg.append(svgElement("line", {class: "grid", x1: x(10 ** x0), x2: x(10 ** x1), y1: at, y2: at}));
    svg.append(svgElement("text", {x: SPACE.left - 8, y: at + 4, "text-anchor": "end"}, decadeText(power)));
  }
  const middle = (x(10 ** x0) + x(10 ** x1)) / 2;
  svg.append(svgElement("text", {x: middle, y: scale.height - 5, "text-anchor": "middle"}, "FLOP/byte of HBM traffic"));
  svg.append(svgElement("text", {x: 0, y: 12}, "TFLOP/s"));
}

function decadeText(power) {
  return power < -3 || power > 4 ? `1e${power}` : (10 ** power).toLocaleString("en-US", {maximumFractionDigits: 3});
}

function drawRoof(svg, scale, peak, bandwidth, labels) {
  const {x, y} = scale;
  const ridge = peak * 1000 / bandwidth;
  // The slope starts where the picture does: at its left edge, or at its lower one.
  const first = Math.max(10 ** scale.x0, 10 ** scale.y0 * 1000 / bandwidth);
  const path = `M${x(first)},${y(first * bandwidth / 1000)} L${x(ridge)},${y(peak)} L${x(10 ** scale.x1)},${y(peak)}`;
  svg.append(svgElement("path", {class: "roof", d: path}));
  const [ridgeX, roofY, bottom] = [x(ridge), y(peak), y(10 ** scale.y0)];
  svg.append(svgElement("line", {class: "drop", x1: ridgeX, x2: ridgeX, y1: roofY, y2: bottom}));
  svg.append(svgElement("circle", {class: "ridge", cx: ridgeX, cy: roofY, r: 4}));
  const wide = (text) => {
    labels.canvas.font = `620 12px ${theme.sans}`;
    return labels.canvas.measureText(text).width + 4;
  };
  const at = (text, left, top) => {
    const room = scale.width - SPACE.right - wide(text);
    labels.put(text, {x: Math.max(SPACE.left + 2, Math.min(left, room)), y: top, width: wide(text), height: 16}, "roof-name");
  };
  const name = `tensor engine, ${report.roofline.dtype}: ${digits(peak)} TFLOP/s`;
  at(name, x(10 ** scale.x1), roofY - 20);
  at(`ridge: ${digits(ridge)} FLOP/byte`, ridgeX + 4, bottom - 20);
  // Above the slope, where no point is, at the height of its left quarter.
  const middle = first ** 0.75 * ridge ** 0.25;
  const text = `HBM: ${digits(bandwidth)} GB/s`;
  const left = x(middle) - wide(text) - 4;
  // Where there is no room, below it.
  if (left > SPACE.left + 2) at(text, left, y(middle * bandwidth / 1000) - 20);
  else at(text, Math.min(x(first ** 0.6 * ridge ** 0.4) + 14, ridgeX - wide(text) - 4), y(first ** 0.6 * ridge ** 0.4 * bandwidth / 1000) + 2);
}

// No label of a point lies on the roof.
function keepRoofFree(labels, scale, peak, bandwidth) {
  for (let across = SPACE.left; across < scale.width - SPACE.right; across += 6) {
    const value = 10 ** (scale.x0 + (across - SPACE.left) / (scale.width - SPACE.left - SPACE.right) * (scale.x1 - scale.x0));
    labels.keepFree(across, scale.y(Math.min(peak, value * bandwidth / 1000)), 3);
  }
}

function drawStepPoint(svg, scale, step, [across, up]) {
  const text = `${report.steps[step].name}: ${digits(across)} FLOP/byte, ${digits(up)} TFLOP/s`;
  const place = {cx: scale.x(across), cy: scale.y(up), r: 5};
  const point = svgElement("circle", {class: "point", ...place, tabindex: 0, role: "img", "aria-label": text, "data-swatch": step});
  point.append(svgElement("title", {}, text));
  svg.append(point);
  paintSwatches(svg);
}

function drawKernelPoint(svg, scale, intensity, achieved, peak, bandwidth) {
  const [x, y] = [scale.x(intensity), scale.y(achieved)];
  const roof = scale.y(Math.min(peak, intensity * bandwidth / 1000));
  svg.append(svgElement("line", {class: "drop", x1: x, x2: x, y1: roof, y2: y}));
  const point = svgElement("circle", {class: "kernel", cx: x, cy: y, r: 7, "data-point": "kernel", role: "img", "aria-label": rooflineText()});
  point.append(svgElement("title", {}, rooflineText()));
  svg.append(point);
}

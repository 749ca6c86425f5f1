// The roofline: what the target allows at each number of operations a byte of HBM traffic, and where the kernel stands.

const SPACE = {left: 52, right: 16, top: 14, bottom: 40};

function svgElement(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.append(text);
  return made;
}

function drawRoofline(place) {
  const {intensity, achieved, peak, bandwidth, steps} = report.roofline;
  const usable = [intensity, achieved, peak, bandwidth].every((value) => value !== null && value > 0);
  if (!usable) {
    place.replaceChildren(element("p", {}, "No roofline: the kernel multiplies nothing, or moves nothing."));
    return;
  }
  const points = steps.map((point, step) => ({step, point})).filter(({point}) => point !== null);
  const scale = rooflineScale(place.clientWidth, intensity, achieved, peak, bandwidth, points);
  const svg = svgElement("svg", {viewBox: `0 0 ${scale.width} ${scale.height}`, role: "img", "aria-label": rooflineText()});
  drawDecades(svg, scale);
  drawRoof(svg, scale, peak, bandwidth);
  for (const {step, point} of points) drawStepPoint(svg, scale, step, point);
  drawKernelPoint(svg, scale, intensity, achieved, peak, bandwidth);
  place.replaceChildren(svg, element("p", {}, rooflineText()));
}

function rooflineText() {
  const {intensity, achieved, peak, bandwidth} = report.roofline;
  const attainable = Math.min(peak, intensity * bandwidth / 1000);
  return `${significant(intensity)} FLOP a byte of HBM traffic; ${significant(achieved)} of ${significant(attainable)} TFLOPS ` +
    `that the roof allows there (${(100 * achieved / attainable).toFixed(1)} %).`;
}

function significant(value) { return value.toLocaleString("en-US", {maximumSignificantDigits: 3}); }

// Where an (intensity, TFLOPS) stands in the picture; both axes are whole decades.
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
    svg.append(svgElement("text", {x: at, y: y(10 ** y0) + 17, "text-anchor": "middle"}, decadeText(power)));
  }
  for (let power = y0; power <= y1; power++) {
    const at = y(10 ** power);
    svg.append(svgElement("line", {class: "grid", x1: x(10 ** x0), x2: x(10 ** x1), y1: at, y2: at}));
    svg.append(svgElement("text", {x: SPACE.left - 8, y: at + 4, "text-anchor": "end"}, decadeText(power)));
  }
  const middle = (x(10 ** x0) + x(10 ** x1)) / 2;
  svg.append(svgElement("text", {x: middle, y: scale.height - 5, "text-anchor": "middle"}, "FLOP a byte of HBM traffic"));
  svg.append(svgElement("text", {x: SPACE.left + 7, y: y(10 ** y1) + 15}, "TFLOPS"));
}

function decadeText(power) {
  return power < -3 || power > 4 ? `1e${power}` : (10 ** power).toLocaleString("en-US", {maximumFractionDigits: 3});
}

function drawRoof(svg, scale, peak, bandwidth) {
  const {x, y} = scale;
  const ridge = peak * 1000 / bandwidth;
  // The slope starts where the picture does: at its left edge, or at its lower one.
  const first = Math.max(10 ** scale.x0, 10 ** scale.y0 * 1000 / bandwidth);
  const path = `M${x(first)},${y(first * bandwidth / 1000)} L${x(ridge)},${y(peak)} L${x(10 ** scale.x1)},${y(peak)}`;
  svg.append(svgElement("path", {class: "roof", d: path}));
  const right = x(10 ** scale.x1);
  svg.append(svgElement("text", {x: right - 4, y: y(peak) - 7, "text-anchor": "end"}, `${significant(peak)} TFLOPS`));
  const middle = Math.sqrt(first * ridge);
  const [across, up] = [x(middle), y(middle * bandwidth / 1000)];
  // Above the slope, where no point is; below it where there is no room.
  const place = across > SPACE.left + 84 ? {x: across - 8, y: up - 6, "text-anchor": "end"} : {x: across + 10, y: up + 14};
  svg.append(svgElement("text", place, `${significant(bandwidth)} GB/s`));
}

function drawStepPoint(svg, scale, step, [across, up]) {
  const text = `${report.steps[step].name}: ${significant(across)} FLOP a byte, ${significant(up)} TFLOPS`;
  const place = {cx: scale.x(across), cy: scale.y(up), r: 5};
  const point = svgElement("circle", {class: "point", ...place, tabindex: 0, role: "img", "aria-label": text});
  point.style.fill = colour(step);
  point.append(svgElement("title", {}, text));
  svg.append(point);
}

function drawKernelPoint(svg, scale, intensity, achieved, peak, bandwidth) {
  const [x, y] = [scale.x(intensity), scale.y(achieved)];
  const roof = scale.y(Math.min(peak, intensity * bandwidth / 1000));
  svg.append(svgElement("line", {class: "drop", x1: x, x2: x, y1: roof, y2: y}));
  const point = svgElement("circle", {class: "kernel", cx: x, cy: y, r: 7, "data-point": "kernel"});
  point.append(svgElement("title", {}, rooflineText()));
  svg.append(point);
  const left = x > scale.width * 0.7;
  const anchor = left ? "end" : "start";
  svg.append(svgElement("text", {class: "strong", x: x + (left ? -12 : 12), y: y + 4, "text-anchor": anchor}, "kernel"));
}

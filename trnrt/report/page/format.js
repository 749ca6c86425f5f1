// Numbers as text, colours, and elements. What a name says is set as text only, never as markup.

const TIMES = [[1e3, "ns"], [1e6, "us"], [1e9, "ms"], [1e12, "s"]];

// A duration with three significant digits, in picoseconds: the rule of trnrt/nki/units.py.
function timeText(picoseconds) {
  if (picoseconds === 0) return "0 us";
  const size = Number(picoseconds.toPrecision(3));
  const [scale, unit] = TIMES.findLast(([least]) => Math.abs(size) >= least) ?? TIMES[0];
  return `${significant(size / scale)} ${unit}`;
}

// A number with at least three digits.
function significant(value) {
  const size = Math.abs(value);
  return fixed(value, size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : 2);
}

function fixed(value, decimals) {
  return value.toLocaleString("en-US", {minimumFractionDigits: decimals, maximumFractionDigits: decimals});
}

// A point in time, to the nanosecond; 0 is the first instruction.
function momentText(picoseconds) { return `${fixed(picoseconds / 1e6, 3)} us`; }

function trimmed(value, decimals) {
  return value.toLocaleString("en-US", {maximumFractionDigits: decimals});
}

function bytesText(bytes) {
  if (bytes < 1024) return `${fixed(bytes, 0)} bytes`;
  return bytes < 1048576 ? `${fixed(bytes / 1024, 1)} KiB` : `${fixed(bytes / 1048576, 1)} MiB`;
}

// A round distance of at least `least`: 1, 2 or 5 times a power of ten.
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999999);
}

// The text of a tick: in the unit of the distance between ticks, so that neighbours differ.
function tickText(time, step) {
  const size = Math.abs(time);
  const [scale, unit] = step < 1e6 && size < 1e7 ? [1e3, "ns"] : step < 1e9 && size < 1e10 ? [1e6, "us"] : [1e9, "ms"];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
  return time === 0 ? "0" : `${trimmed(time / scale, Math.min(decimals, 6))} ${unit}`;
}

const theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["card", "line", "faint", "text", "muted", "accent", "select", "idle"];
  for (const name of names) theme[name] = style.getPropertyValue(`--${name}`).trim();
  theme.colours = Array.from({length: COLOURS}, (_, k) => style.getPropertyValue(`--c${k}`).trim());
  theme.changes = ["worse", "better", "idle", "accent"].map((name) => style.getPropertyValue(`--${name}`).trim());
  theme.onColours = theme.colours.map(readableOn);
  theme.onIdle = readableOn(theme.idle);
  theme.sans = style.getPropertyValue("--sans").trim();
}

// Numbers from here on are the colours of a change: longer, shorter, as before, new or gone.
const CHANGES = 1000;
const CHANGE_NAMES = ["longer than before", "shorter than before", "as before", "new, or gone"];

function colour(number) {
  if (number >= CHANGES) return theme.changes[number - CHANGES];
  return number < 0 ? theme.idle : theme.colours[number % COLOURS];
}

// Black or white, whichever stands out more from a colour (#rrggbb; relative luminance as in WCAG 2).
function readableOn(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const value = parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.24 ? "#10151b" : "#ffffff";
}

function textOn(number) {
  if (number >= CHANGES) return readableOn(theme.changes[number - CHANGES]);
  return number < 0 ? theme.onIdle : theme.onColours[number % COLOURS];
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A canvas as large as its place on the page, in the device's pixels; drawing counts CSS pixels.
function prepared(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.textBaseline = "middle";
  return [context, width];
}

// Text cut to a width.
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const letters = Math.floor(text.length * width / context.measureText(text).width) - 1;
  return letters < 2 ? "" : `${text.slice(0, letters)}\u2026`;
}

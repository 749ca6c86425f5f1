// Elements, and numbers as text. What a model calls itself or its classes is set as text only, never as markup.

export function at(id) { return document.getElementById(id); }

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function number(value, decimals = 3) {
  return value.toLocaleString("en-US", {maximumFractionDigits: decimals});
}

export function milliseconds(value) { return `${value.toLocaleString("en-US", {maximumSignificantDigits: 3})} ms`; }

export function microseconds(value) {
  const [size, unit] = value < 1000 ? [value, "µs"] : [value / 1000, "ms"];
  return `${size.toLocaleString("en-US", {maximumSignificantDigits: 3})} ${unit}`;
}

export function percent(share) {
  const value = 100 * share;
  if (value > 0 && value < 0.01) return "< 0.01 %";
  return `${value.toFixed(2)} %`;
}

export function counted(count, thing, things = `${thing}s`) { return `${number(count)} ${count === 1 ? thing : things}`; }

// A shape as numpy says it; a dimension that varies is a star.
export function shapeText(shape) {
  const dims = shape.map((dim) => (dim < 0 ? "*" : String(dim)));
  return `(${dims.join(", ")}${dims.length === 1 ? "," : ""})`;
}

export function bytesText(bytes) {
  if (bytes < 1024) return counted(bytes, "byte");
  return bytes < 1048576 ? `${number(bytes / 1024, 1)} KiB` : `${number(bytes / 1048576, 1)} MiB`;
}

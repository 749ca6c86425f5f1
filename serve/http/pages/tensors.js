// The form of a model's tensors: for each input its name, dtype and shape, and an example as JSON that can be edited.

import {element, shapeText} from "./elements.js";

// An example with more numbers than this is nobody's to edit.
const SHOWN = 4096;
// The length of an example along a dimension that varies, but for the rows.
const OPEN = 8;

export function tensorForm(model) { return new TensorForm(model); }

// A whole request for /predict (`rows`) or the protocol's infer, as text: for the reference.
export function exampleBody(model, rows) {
  const texts = model.form.tensors.map((tensor) => exampleOf(tensor, rows));
  return rows ? rowsBody(model.form.tensors, texts) : inferBody(model.form.tensors, texts);
}

class TensorForm {
  constructor({name, form}) {
    Object.assign(this, {name, rows: form.rows, tensors: form.tensors});
    this.areas = this.tensors.map((tensor, k) => element("textarea", {
      id: `tensor-${k}`, spellcheck: "false", autocomplete: "off", "aria-describedby": "tensors-help", rows: this.tensors.length > 1 ? 3 : 8,
    }, exampleOf(tensor, this.rows)));
    this.element = element("div", {class: "json"},
      ...(form.reason ? [element("p", {class: "help"}, `No picture can be sent: ${form.reason}.`)] : []),
      ...this.tensors.map((tensor, k) => element("div", {}, element("label", {for: `tensor-${k}`}, tensor.name, " ",
        element("small", {}, `${tensor.dtype} ${shapeText(tensor.shape)}`)), this.areas[k])),
      element("p", {class: "help", id: "tensors-help"}, (this.rows ? "One row of each input as JSON, without the batch dimension." : "Each input as JSON.") +
        " A dimension shown as * may have any length. The values are only an example."));
  }

  path() { return this.rows ? `predict?model=${encodeURIComponent(this.name)}` : `v2/models/${encodeURIComponent(this.name)}/infer`; }

  async sent() {
    const texts = this.tensors.map((tensor, k) => checked(tensor, this.areas[k]));
    return {type: "application/json", body: this.rows ? rowsBody(this.tensors, texts) : inferBody(this.tensors, texts)};
  }
}

function checked({name}, area) {
  const text = area.value.trim();
  try {
    JSON.parse(text);
  } catch (error) {
    area.setAttribute("aria-invalid", "true");
    area.focus();
    throw new Error(text === "" ? `${name} is empty.` : `${name} is no JSON: ${error.message}.`);
  }
  area.removeAttribute("aria-invalid");
  return text;
}

// Texts stay as they were typed: large whole numbers would lose digits as JavaScript's.
function rowsBody(tensors, texts) {
  if (tensors.length === 1) return `{"instances": [${texts[0]}]}`;
  return `{"instances": [{${tensors.map(({name}, k) => `${JSON.stringify(name)}: ${texts[k]}`).join(", ")}}]}`;
}

function inferBody(tensors, texts) {
  const inputs = tensors.map(({name, shape, datatype}, k) => {
    const given = texts[k] === "" ? [] : JSON.parse(texts[k]);
    const data = Array.isArray(given) ? texts[k] : `[${texts[k]}]`;
    return `{"name": ${JSON.stringify(name)}, "shape": ${JSON.stringify(nested(given, shape))}, "datatype": "${datatype}", "data": ${data || "[]"}}`;
  });
  return `{"inputs": [${inputs.join(", ")}]}`;
}

// The shape: as declared, or that of the lists where a dimension is open.
function nested(value, declared) {
  if (declared.every((size) => size >= 0)) return declared;
  const found = [];
  for (let inner = value; Array.isArray(inner); inner = inner[0]) found.push(inner.length);
  return found;
}

function exampleOf({dtype, shape}, rows) {
  const sizes = (rows ? shape.slice(1) : shape).map((size, axis) => (size >= 0 ? size : !rows && axis === 0 ? 1 : OPEN));
  if (sizes.reduce((a, b) => a * b, 1) > SHOWN) return "";
  // Ones are ids that every vocabulary has, and a mask of nothing but content.
  const value = {str: "text", bool: true}[dtype] ?? (/int/.test(dtype) ? 1 : 0);
  return JSON.stringify(filled(sizes, value)).replaceAll(",", ", ");
}

function filled([count, ...rest], value) {
  return count === undefined ? value : Array.from({length: count}, () => filled(rest, value));
}

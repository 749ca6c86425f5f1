// The form of any other model: the request's JSON, as text.

import {element, shapeText} from "./elements.js";

// An example with more numbers than this is nobody's to edit.
const SHOWN = 4096;

export function textForm(model) { return new TextForm(model); }

class TextForm {
  constructor({inputs, form}) {
    this.area = element("textarea", {id: "json", rows: 10, spellcheck: "false", autocomplete: "off", "aria-describedby": "json-help"});
    this.area.value = example(inputs);
    const takes = inputs.map(({name, dtype, shape}) => `${name} ${dtype} ${shapeText(shape)}`).join(", ");
    this.element = element("div", {class: "json"},
      ...(form.reason ? [element("p", {class: "help"}, `No picture can be sent as it is: ${form.reason}.`)] : []),
      element("label", {for: "json"}, "The request as JSON"), this.area,
      element("p", {class: "help", id: "json-help"}, `Each instance is a row of ${takes}; of several inputs, each is given by its name.`));
  }

  async sent() {
    try {
      JSON.parse(this.area.value);
    } catch (error) {
      this.area.setAttribute("aria-invalid", "true");
      this.area.focus();
      throw new Error(`This is no JSON: ${error.message}.`);
    }
    this.area.removeAttribute("aria-invalid");
    return {type: "application/json", body: this.area.value};
  }
}

// A row of zeros, where that is not too long; a dimension that varies is 1.
function example(inputs) {
  const rows = inputs.map((input) => input.shape.slice(1).map((dim) => Math.max(1, dim)));
  const count = rows.reduce((sum, dims) => sum + dims.reduce((a, b) => a * b, 1), 0);
  const zeros = rows.map((dims, k) => (count > SHOWN ? "..." : filled(dims, {str: "", bool: false}[inputs[k].dtype] ?? 0)));
  const row = inputs.length === 1 ? zeros[0] : Object.fromEntries(inputs.map((input, k) => [input.name, zeros[k]]));
  return JSON.stringify({instances: [row]});
}

function filled([count, ...rest], value) {
  return count === undefined ? value : Array.from({length: count}, () => filled(rest, value));
}

// The form of a model that takes rows: a field a number, and the row as one line with commas.

import {counted, element} from "./elements.js";

// With more fields than this, the line comes first and the fields are folded away.
const SHOWN = 24;
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

export function tableForm({columns}, said) { return new TableForm(columns, said); }

class TableForm {
  constructor(columns, said) {
    Object.assign(this, {columns, said});
    this.line = element("input", {
      type: "text", id: "row", autocomplete: "off", spellcheck: "false", "aria-describedby": "row-help", oninput: () => this.spread(),
    });
    this.fields = columns.map((column, k) => element("input", {
      type: "text", id: `field-${k}`, autocomplete: "off", spellcheck: "false", inputmode: column.dtype === "str" ? "text" : "decimal",
      oninput: () => this.gather(),
    }));
    const grid = element("div", {class: "fields"}, ...columns.map((column, k) =>
      element("div", {}, element("label", {for: `field-${k}`}, column.title, " ", element("small", {}, typeText(column.dtype))), this.fields[k])));
    this.element = element("div", {class: "table"}, this.lineField(),
      columns.length <= SHOWN ? grid : element("details", {}, element("summary", {}, `All ${columns.length} fields`), grid));
  }

  lineField() {
    return element("div", {class: "line"},
      element("label", {for: "row"}, "A row"), this.line,
      element("p", {class: "help", id: "row-help"},
        `${counted(this.columns.length, "value")} with commas between, as a spreadsheet exports them. The fields below follow.`),
      element("div", {class: "tools"}, element("button", {type: "button", id: "example", onclick: () => this.fill()}, "Use a sample"),
        element("button", {type: "button", id: "clear", onclick: () => this.setAll(this.columns.map(() => ""))}, "Clear")));
  }

  setAll(texts) {
    this.fields.forEach((field, k) => { field.value = texts[k]; });
    this.gather();
  }

  // Any values: evenly spread from 0 to 1, so that the same model always gets the same ones.
  fill() {
    const samples = {bool: (k) => (k % 2 === 0 ? "true" : "false"), str: () => "text"};
    const fraction = (k) => String(Number(((k * 0.618034 + 0.5) % 1).toFixed(3)));
    const whole = (k) => String(k % 2);
    this.setAll(this.columns.map(({dtype}, k) => (samples[dtype] ?? (/int/.test(dtype) ? whole : fraction))(k)));
    this.said("Sample values are filled in");
  }

  gather() {
    for (const field of this.fields) field.removeAttribute("aria-invalid");
    const texts = this.fields.map((field) => field.value.trim());
    this.line.value = texts.every((text) => text === "") ? "" : texts.map(inLine).join(", ");
  }

  spread() {
    const texts = this.line.value.trim() === "" ? [] : splitLine(this.line.value);
    this.fields.forEach((field, k) => { field.value = texts[k] ?? ""; });
  }

  async sent() {
    const given = this.line.value.trim() === "" ? 0 : splitLine(this.line.value).length;
    if (given > this.columns.length) throw new Error(`The row has ${counted(given, "value")}; the model takes ${this.columns.length}.`);
    const values = this.columns.map((column, k) => this.value(column, this.fields[k]));
    return {type: "application/json", body: `{"instances": [${this.instance(values)}]}`};
  }

  // A field as JSON; an Error, and the field marked and focused, where it can't be.
  value(column, field) {
    try {
      return jsonOf(column, field.value.trim());
    } catch (error) {
      const folded = field.closest("details");
      if (folded !== null) folded.open = true;
      field.setAttribute("aria-invalid", "true");
      field.focus();
      throw error;
    }
  }

  // One input is a row itself; of several, each is said by name.
  instance(values) {
    const inputs = [...new Set(this.columns.map((column) => column.input))];
    const rows = inputs.map((input) => {
      const own = values.filter((_, k) => this.columns[k].input === input);
      return this.columns.find((column) => column.input === input).place === null ? own[0] : `[${own.join(", ")}]`;
    });
    if (inputs.length === 1) return rows[0];
    return `{${inputs.map((input, k) => `${JSON.stringify(input)}: ${rows[k]}`).join(", ")}}`;
  }
}

function typeText(dtype) { return {str: "text", bool: "true or false"}[dtype] ?? (/int/.test(dtype) ? "whole number" : "number"); }

// A number keeps the digits that were typed: large whole numbers would lose some as JavaScript's.
function jsonOf({dtype, title}, text) {
  if (dtype === "str") return JSON.stringify(text);
  if (text === "") throw new Error(`${title} is empty.`);
  if (dtype === "bool") {
    if (/^(true|1)$/i.test(text)) return "true";
    if (/^(false|0)$/i.test(text)) return "false";
    throw new Error(`${title} is ${JSON.stringify(text)}, which is neither true nor false.`);
  }
  if (NUMBER.test(text)) return text;
  if (!Number.isFinite(Number(text))) throw new Error(`${title} is ${JSON.stringify(text)}, which is no number.`);
  return String(Number(text));
}

// Texts with commas or quotes stand in double quotes, as in a CSV file.
function inLine(text) { return /[",;\t]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; }

function splitLine(line) {
  const texts = [];
  for (const [, inQuotes, plain] of `${line.trim()},`.matchAll(/\s*(?:"((?:[^"]|"")*)"\s*|([^,;\t]*))[,;\t]/g)) {
    texts.push((inQuotes === undefined ? plain : inQuotes.replaceAll('""', '"')).trim());
  }
  return texts;
}

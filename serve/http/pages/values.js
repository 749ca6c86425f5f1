// Tensors of an answer as tables.

import {element, number, shapeText} from "./elements.js";

const MOST_ROWS = 8;
const MOST_COLUMNS = 6;

// A section for each of `tensors`, which have a name, perhaps a dtype, and a nested value.
export function tensorTables(tensors) { return tensors.map(tensorTable); }

function tensorTable({name, dtype, value}) {
  const shape = shapeOf(value);
  const rows = shape.length < 2 ? [value].flat() : leading(value, shape.length - 1);
  const shown = rows.slice(0, MOST_ROWS);
  const lines = shape.length < 2 ? shown.map((each, k) => line(shape.length === 0 ? [] : [k], [each])) : shown.map(({place, values}) => line(place, values));
  const table = element("table", {}, element("caption", {}, element("code", {}, name), ` ${dtype ?? ""} ${shapeText(shape)}`),
    ...(shape.length > 1 ? [heading(shape.at(-1))] : []), element("tbody", {}, ...lines));
  const cut = rows.length > MOST_ROWS || (shape.length > 1 && shape.at(-1) > MOST_COLUMNS);
  const size = shape.reduce((a, b) => a * b, 1);
  return element("div", {class: "tensor", role: "group", tabindex: 0, "aria-label": `Values of ${name}`}, table,
    ...(cut ? [element("p", {class: "help"}, `These are the first of ${number(size)} values; the whole answer has all.`)] : []));
}

function shapeOf(value) {
  const found = [];
  for (let inner = value; Array.isArray(inner); inner = inner[0]) found.push(inner.length);
  return found;
}

// The innermost lists, as many as are shown and one more, with the places that lead to them.
function leading(value, depth, place = []) {
  if (depth === 0) return [{place, values: value}];
  const found = [];
  for (let k = 0; k < value.length && found.length <= MOST_ROWS; k++) found.push(...leading(value[k], depth - 1, [...place, k]));
  return found;
}

function heading(count) {
  const shown = Math.min(count, MOST_COLUMNS);
  return element("thead", {}, element("tr", {}, element("td"), ...Array.from({length: shown}, (_, k) => element("th", {scope: "col"}, String(k))),
    ...(count > shown ? [element("td", {}, "...")] : [])));
}

function line(place, values) {
  const shown = values.slice(0, MOST_COLUMNS);
  return element("tr", {}, ...(place.length > 0 ? [element("th", {scope: "row"}, place.join(", "))] : []),
    ...shown.map((each) => element("td", {class: "number"}, textOf(each))), ...(values.length > shown.length ? [element("td", {}, "...")] : []));
}

function textOf(value) { return typeof value === "number" ? String(Number(value.toPrecision(5))) : typeof value === "string" ? value : JSON.stringify(value); }

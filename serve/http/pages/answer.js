// What came back: the classes with bars, the other outputs, where the time went, and the command line that does the same.

import {commandBox} from "./command.js";
import {curlFor, notesFor} from "./curl.js";
import {drawnPicture, spokenText} from "./drawing.js";
import {at, counted, element, microseconds, milliseconds, number, percent} from "./elements.js";
import {tensorTables} from "./values.js";

const MOST_CLASSES = 10;
const MOST_TEXT = 2000;

// One sentence: what a screen reader says when the answer is there.
export function summary(model, answer) {
  const best = likeliest(model, answer).ranked[0];
  const spent = answer.timing === undefined ? "" : ` Computed in ${milliseconds(answer.timing.compute_ms)}.`;
  if (answer.kind !== undefined) return `${model.name} finds ${spokenText(answer)}.${spent}`;
  if (best !== undefined) return `${model.name} says ${best.name}, ${percent(best.share)}.${spent}`;
  const said = tensorsOf(model, answer).map(({name, value}) => `${name} ${JSON.stringify(alone(value))}`).join("; ");
  return `${model.name} says ${clipped(said, 200)}.${spent}`;
}

export function showAnswer(model, path, sent, {document, text, id}, elapsed) {
  at("answer").replaceChildren(
    ...(document.kind === undefined ? meaning(model, document) : drawnPicture(document, sent, at("answer").clientWidth)),
    element("h3", {}, "Time"), times(document.timing, elapsed),
    ...(id === "" ? [] : [element("p", {class: "help", id: "request"}, "Request id, as in the server's log: ", element("code", {}, id))]),
    ...commandBox("curl", "The same with curl", curlFor(path, sent), notesFor(sent)),
    element("details", {class: "whole"}, element("summary", {}, "The whole answer"),
      element("pre", {tabindex: 0, "aria-label": "The answer's JSON"}, clipped(text, 100 * MOST_TEXT))),
  );
}

// The classes of the first row, the likeliest first; none where the answer has no number for each class. `guessed` names
// the output where the server says no classes, and the page reads them by the rule of `trnrt run --top`.
function likeliest(model, answer) {
  const {labels, probabilities} = answer;
  if (labels !== undefined && probabilities !== undefined) return {ranked: ranked(labels, probabilities[0]), guessed: null};
  const output = model.form?.classes;
  if (!output || answer.kind !== undefined || answer.predictions === undefined) return {ranked: [], guessed: null};
  const numbers = tensorsOf(model, answer).find(({name}) => name === output)?.value.flat(Infinity) ?? [];
  if (numbers.length < 2) return {ranked: [], guessed: null};
  const names = model.labels?.length === numbers.length ? model.labels : numbers.map((_, k) => `class ${k}`);
  return {ranked: ranked(names, softmax(numbers)), guessed: output};
}

function ranked(names, shares) { return names.map((name, k) => ({name, share: shares[k]})).sort((a, b) => b.share - a.share); }

function softmax(numbers) {
  const most = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = numbers.map((each) => Math.exp(each - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((each) => each / sum);
}

// The outputs with their values: of /predict those of the first row, of the protocol's infer all.
function tensorsOf(model, {predictions, outputs}) {
  if (outputs !== undefined) return outputs.map(({name, datatype, shape, data}) => ({name, dtype: datatype, value: nested(data, shape)}));
  const [row] = predictions;
  const named = model.outputs.length === 1 ? {[model.outputs[0].name]: row} : row;
  return Object.entries(named).map(([name, value]) => ({name, dtype: model.outputs.find((each) => each.name === name)?.dtype, value}));
}

// Flat values in a shape.
function nested(values, shape) {
  return shape.slice(1).reduceRight((inner, size) => Array.from({length: inner.length / size || 0}, (_, k) => inner.slice(k * size, (k + 1) * size)),
    shape.length === 0 ? values[0] : values);
}

// What an answer without boxes or a mask says: the best class, a number, or the outputs as tables.
function meaning(model, answer) {
  const {ranked: found, guessed} = likeliest(model, answer);
  const [best] = found;
  const tensors = best === undefined || guessed !== null ? tensorsOf(model, answer) : [];
  if (best === undefined) return tensors.length === 1 && isNumber(alone(tensors[0].value)) ? [valueOf(alone(tensors[0].value))] : tensorTables(tensors);
  return [
    element("p", {class: "best", id: "best"}, element("strong", {}, best.name), element("span", {}, percent(best.share))),
    ...classes(found),
    ...(guessed === null ? [] : [
      element("p", {class: "help", id: "guessed"}, `The model names no classes: these are the softmax of its output ${guessed}.`),
      element("details", {}, element("summary", {}, "The outputs"), ...tensorTables(tensors))]),
  ];
}

// A value that is the only one of its row, or of a list in it.
function alone(value) { return Array.isArray(value) && value.length === 1 ? alone(value[0]) : value; }

function isNumber(value) { return typeof value === "number"; }

function valueOf(value) { return element("p", {class: "best"}, element("strong", {id: "value"}, String(Number(value.toPrecision(7))))); }

function classes(found) {
  const shown = found.slice(0, MOST_CLASSES);
  const rows = shown.map(({name, share}) => {
    const bar = element("span", {class: "bar", "aria-hidden": "true"}, element("span"));
    bar.firstChild.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
    return element("li", {}, element("span", {class: "name"}, name), bar, element("span", {class: "number"}, percent(share)));
  });
  return [element("ol", {class: "classes", id: "classes", "aria-label": `Classes, the likeliest ${counted(shown.length, "one")}`}, ...rows)];
}

// The protocol's infer answers without times of the server.
function times(timing = {}, elapsed = 0) {
  const rows = [["Browser", "browser", milliseconds(elapsed), "with the way there and back"]];
  if (timing.queue_ms !== undefined) {
    rows.unshift(["Queue", "queue", milliseconds(timing.queue_ms), "waiting for the model"],
      ["Batch", "batch", milliseconds(timing.batch_ms), `put together; ${counted(timing.batch_rows, "row")}, run as ${timing.bucket}`],
      ["Compute", "compute", milliseconds(timing.compute_ms), "on this server"],
      ["Server", "total", milliseconds(timing.total_ms), "from request to answer"]);
  }
  if (typeof timing.predicted_device_us === "number") {
    rows.push(["On Trainium", "device", microseconds(timing.predicted_device_us), `predicted for ${counted(timing.bucket, "row")}`]);
  }
  return element("dl", {class: "facts", id: "times"}, ...rows.map(([title, name, value, note]) =>
    element("div", {}, element("dt", {}, title), element("dd", {"data-field": name}, value, element("small", {}, note)))));
}

function clipped(text, most) { return text.length <= most ? text : `${text.slice(0, most)} ... (${number(text.length)} characters)`; }

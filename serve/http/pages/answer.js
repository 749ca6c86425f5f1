// What came back: the classes with bars, the other outputs, where the time went, and the command line that does the same.

import {curlFor, notesFor} from "./curl.js";
import {drawnPicture, spokenText} from "./drawing.js";
import {at, counted, element, microseconds, milliseconds, number, percent} from "./elements.js";

const MOST_CLASSES = 10;
const MOST_TEXT = 2000;

// One sentence: what a screen reader says when the answer is there.
export function summary(model, answer) {
  const best = likeliest(answer)[0];
  const spent = `Computed in ${milliseconds(answer.timing.compute_ms)}.`;
  if (answer.kind !== undefined) return `${model.name} finds ${spokenText(answer)}. ${spent}`;
  if (best !== undefined) return `${model.name} says ${best.name}, ${percent(best.share)}. ${spent}`;
  return `${model.name} says ${clipped(JSON.stringify(alone(answer.predictions[0])), 200)}. ${spent}`;
}

export function showAnswer(model, path, sent, {document, text}, elapsed) {
  at("answer").replaceChildren(
    ...(document.kind === undefined ? headline(document) : drawnPicture(document, sent, at("answer").clientWidth)),
    ...classes(document),
    element("h3", {}, "Time"), times(document.timing, elapsed),
    ...command(path, sent),
    element("details", {class: "whole"}, element("summary", {}, "The whole answer"),
      element("pre", {tabindex: 0, "aria-label": "The answer's JSON"}, clipped(text, 100 * MOST_TEXT))),
  );
}

// The classes of the first row, the likeliest first; none where the answer has no probabilities.
function likeliest({labels, probabilities}) {
  if (labels === undefined || probabilities === undefined) return [];
  return labels.map((name, k) => ({name, share: probabilities[0][k]})).sort((a, b) => b.share - a.share);
}

function headline(answer) {
  const best = likeliest(answer)[0];
  if (best === undefined) return [valueOf(alone(answer.predictions[0]))];
  return [element("p", {class: "best", id: "best"}, element("strong", {}, best.name), element("span", {}, percent(best.share)))];
}

// A value that is the only one of its row, or of a list in it.
function alone(value) { return Array.isArray(value) && value.length === 1 ? alone(value[0]) : value; }

function valueOf(value) {
  if (typeof value === "number") return element("p", {class: "best"}, element("strong", {id: "value"}, String(Number(value.toPrecision(7)))));
  const text = clipped(JSON.stringify(value), MOST_TEXT);
  return element("pre", {id: "value", tabindex: 0, "aria-label": "The prediction"}, text);
}

function classes(answer) {
  const found = likeliest(answer);
  if (found.length === 0) return [];
  const shown = found.slice(0, MOST_CLASSES);
  const rows = shown.map(({name, share}) => {
    const bar = element("span", {class: "bar", "aria-hidden": "true"}, element("span"));
    bar.firstChild.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
    return element("li", {}, element("span", {class: "name"}, name), bar, element("span", {class: "number"}, percent(share)));
  });
  return [element("ol", {class: "classes", id: "classes", "aria-label": `Classes, the likeliest ${counted(shown.length, "one")}`}, ...rows)];
}

function times(timing, elapsed) {
  const rows = [
    ["Queue", "queue", milliseconds(timing.queue_ms), "waiting for the model"],
    ["Batch", "batch", milliseconds(timing.batch_ms), `put together; ${counted(timing.batch_rows, "row")}, run as ${timing.bucket}`],
    ["Compute", "compute", milliseconds(timing.compute_ms), "on this server"],
    ["Server", "total", milliseconds(timing.total_ms), "from request to answer"],
    ["Browser", "browser", milliseconds(elapsed), "with the way there and back"],
  ];
  if (typeof timing.predicted_device_us === "number") {
    rows.push(["On Trainium", "device", microseconds(timing.predicted_device_us), `predicted for ${counted(timing.bucket, "row")}`]);
  }
  return element("dl", {class: "facts", id: "times"}, ...rows.map(([title, name, value, note]) =>
    element("div", {}, element("dt", {}, title), element("dd", {"data-field": name}, value, element("small", {}, note)))));
}

function command(path, sent) {
  const text = curlFor(path, sent);
  const code = element("pre", {id: "curl", tabindex: 0, "aria-labelledby": "curl-title"}, text);
  const said = element("span", {class: "help", role: "status"});
  const copy = async () => { said.textContent = (await copied(text, code)) ? "Copied." : "Select it and press Ctrl+C."; };
  const note = notesFor(sent);
  return [
    element("div", {class: "title"}, element("h3", {id: "curl-title"}, "The same with curl"),
      element("div", {class: "tools"}, said, element("button", {type: "button", id: "copy", onclick: copy}, "Copy"))),
    code, ...(note === "" ? [] : [element("p", {class: "help"}, note)]),
  ];
}

// Pages that come over plain HTTP from another machine have no clipboard: there the text is selected and copied.
async function copied(text, code) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return document.execCommand("copy");
  }
}

function clipped(text, most) { return text.length <= most ? text : `${text.slice(0, most)} ... (${number(text.length)} characters)`; }

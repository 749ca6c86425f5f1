// The list of models, and what is known of one of them.

import {counted, element, microseconds, shapeText} from "./elements.js";

const STATES = {
  ready: "ready", loading: "loading", recovering: "recovering", failed: "failed", unloading: "unloading", unloaded: "unloaded",
};

// What is said of a model that something is wrong with, beside the server's own words.
const BROKEN = {
  failed: "This model did not load; the other models are not affected.",
  recovering: "This model's device failed; the model is loaded again.",
};

export const FRAGMENT = "#model/";

// The links to the models; the address's fragment says which one is shown.
export function listOf(models, chosen) {
  return models.map((model) => element("li", {}, element("a", {
    href: `${FRAGMENT}${encodeURIComponent(model.name)}`, "aria-current": model === chosen ? "true" : null,
  }, element("span", {class: "name"}, ...breakable(model.name)), stateOf(model), element("small", {}, briefOf(model)))));
}

// The same for narrow pages.
export function optionsOf(models, chosen) {
  return models.map((model) => element("option", {value: model.name, selected: model === chosen},
    model.state === "ready" ? model.name : `${model.name} (${STATES[model.state] ?? model.state})`));
}

// A name may be broken after each underscore.
function breakable(name) { return name.split("_").flatMap((part, k) => (k === 0 ? [part] : ["_", element("wbr"), part])); }

function stateOf({state}) { return element("span", {class: `state ${state}`}, STATES[state] ?? state); }

function briefOf(model) {
  if (BROKEN[model.state]) return model.reason ?? BROKEN[model.state];
  if (model.state !== "ready") return {loading: "Being compiled.", unloading: "Finishing its requests."}[model.state] ?? "Not loaded.";
  const fastest = Object.entries(model.predicted_us)[0];
  const inputs = model.inputs.map((input) => `${input.name} ${shapeText(input.shape)}`).join(", ");
  if (fastest === undefined) return inputs;
  const rows = fastest[0] === "1" ? "" : ` for ${counted(Number(fastest[0]), "row")}`;
  return `${inputs} · ${microseconds(fastest[1])} predicted${rows}`;
}

export function detailsOf(model) {
  if (model.state !== "ready") return [element("h2", {id: "model-title"}, model.name), notReady(model)];
  return [
    element("div", {class: "title"}, element("h2", {id: "model-title"}, model.name), stateOf(model)),
    element("div", {class: "about"},
      element("dl", {},
        ...row("Inputs", "inputs", ...model.inputs.map(tensor)),
        ...row("Outputs", "outputs", ...model.outputs.map(tensor)),
        ...(model.labels ? row("Classes", "labels", labelsText(model.labels)) : []),
        ...(model.digest ? row("Digest", "digest", element("code", {title: model.digest}, `${model.digest.slice(0, 19)}…`)) : [])),
      ...latencies(model)),
  ];
}

function notReady(model) {
  if (!BROKEN[model.state]) return element("p", {class: "help"}, `This model is ${model.state}. ${briefOf(model)}`);
  return element("div", {class: "warning", id: "reason"}, element("strong", {}, `${BROKEN[model.state]} `),
    element("span", {}, model.reason ?? "The server's log says why."));
}

function row(title, name, ...content) { return [element("dt", {}, title), element("dd", {"data-field": name}, ...content)]; }

function tensor({name, dtype, shape}) {
  return element("div", {}, element("code", {}, name), ` ${dtype} ${shapeText(shape)}`);
}

function labelsText(labels) {
  const shown = labels.slice(0, 12).join(", ");
  return labels.length > 12 ? `${shown}, ... (${labels.length})` : shown;
}

// The predicted time of each size that is compiled, with bars on one scale.
function latencies({predicted_us, low_us = {}, high_us = {}}) {
  const times = Object.entries(predicted_us).map(([rows, time]) => [Number(rows), time]).sort((a, b) => a[0] - b[0]);
  if (times.length === 0) return [];
  const longest = Math.max(...times.map(([, time]) => time));
  const lines = times.map(([rows, time]) => {
    const bar = element("span", {class: "bar", "aria-hidden": "true"}, element("span"));
    bar.firstChild.style.width = `${100 * time / longest}%`;
    const [low, high] = [low_us[rows], high_us[rows]];
    const range = low === undefined ? null : `${microseconds(low)} to ${microseconds(high)}`;
    return element("li", {title: range}, element("span", {class: "name"}, counted(rows, "row")), bar, element("span", {class: "number"}, microseconds(time)));
  });
  return [element("div", {}, element("h3", {id: "latency-title"}, "Predicted time on the device"),
    element("ul", {class: "classes", id: "latency", "aria-labelledby": "latency-title"}, ...lines))];
}

// The page: which model is chosen, what is sent for it, and what came back.

import {showAnswer, summary} from "./answer.js";
import {getJson, hasKey, post, setKey} from "./api.js";
import {at, counted, element} from "./elements.js";
import {imageForm} from "./images.js";
import {detailsOf, FRAGMENT, listOf, optionsOf} from "./models.js";
import {tableForm} from "./tables.js";
import {tensorForm} from "./tensors.js";

const WAITING = ["loading", "recovering", "unloading"];
const POLL_MS = 1000;

const state = {models: [], server: null, chosen: null, form: null, shown: "", busy: false, timer: 0};

function say(text) { at("status").textContent = text; }

function tell(error) {
  const id = error?.id ? [element("small", {}, "Request id, as in the server's log: ", element("code", {}, error.id))] : [];
  at("error").replaceChildren(...(error === null ? [] : [element("span", {}, error.message), ...id]));
  at("error").hidden = error === null;
}

// Reads the models, and again while one of them is on its way.
async function refresh() {
  clearTimeout(state.timer);
  try {
    const {document} = await getJson("models.json");
    Object.assign(state, document);
    at("key-card").hidden = !hasKey();
    at("models").hidden = false;
    at("list-error").hidden = true;
  } catch (error) {
    refused(error);
    return;
  }
  show();
  if (state.models.some((model) => WAITING.includes(model.state))) state.timer = setTimeout(refresh, POLL_MS);
}

function refused(error) {
  const asks = error.status === 401;
  at("list-error").hidden = asks;
  at("list-error").textContent = error.message;
  if (!asks) return;
  const wrong = hasKey();
  at("key-card").hidden = false;
  at("models").hidden = state.server === null;
  at("key-help").textContent = wrong ? "The server does not know this key." : "This server asks for an API key. It is kept in this page only.";
  at("key").setAttribute("aria-invalid", String(wrong));
  if (wrong) at("key").focus();
}

// The model that the address names, else that which is shown, else the first that is ready.
function named() {
  const name = location.hash.startsWith(FRAGMENT) ? decoded(location.hash.slice(FRAGMENT.length)) : state.chosen?.name;
  const {models} = state;
  return models.find((model) => model.name === name) ?? models.find((model) => model.state === "ready") ?? models[0] ?? null;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  const {models, server} = state;
  const ready = models.filter((model) => model.state === "ready").length;
  at("version").textContent = `trnrt ${server.version}, ${server.dtype}`;
  at("count").textContent = `${ready} of ${counted(models.length, "model")} ready`;
  const chosen = named();
  at("list").replaceChildren(...(models.length > 0 ? listOf(models, chosen) : [element("li", {class: "help"}, "No model is served.")]));
  at("pick").replaceChildren(...optionsOf(models, chosen));
  const now = JSON.stringify(chosen);
  if (now !== state.shown) choose(chosen);
  state.shown = now;
}

// Builds the form anew only where the model is another one, or has changed: what was drawn stays.
function choose(model) {
  Object.assign(state, {chosen: model, form: null});
  at("model").hidden = model === null;
  at("try").hidden = model?.state !== "ready";
  at("answer-card").hidden = model?.state !== "ready";
  tell(null);
  if (model === null) return;
  at("details").replaceChildren(...detailsOf(model));
  document.title = `${model.name} - trnrt`;
  at("answer").replaceChildren(noAnswer());
  if (model.state !== "ready") return;
  at("try-title").textContent = `Try ${model.name}`;
  showForm(model, model.form.kind);
}

// The form of a kind; a model that takes a picture or a row takes JSON, too.
function showForm(model, kind) {
  const {form} = state.chosen;
  state.form = kind === "json" ? tensorForm(model) : formFor(model);
  at("fields").replaceChildren(state.form.element);
  const other = form.kind === "json" ? null : kind === "json" ? form.kind : "json";
  const title = {json: "Send numbers as JSON instead", image: "Send a picture instead", table: "Fill in fields instead"}[other];
  const change = element("button", {type: "button", class: "plain", onclick: () => showForm(model, other)}, title ?? "");
  at("below").replaceChildren(...(state.form.below ? [state.form.below] : []), ...(other === null ? [] : [change]));
}

function noAnswer() { return element("p", {class: "empty"}, "The answer appears here."); }

function formFor(model) {
  const {form} = model;
  return form.kind === "image" ? imageForm(form, state.server.max_body_mib * 1048576, say) : tableForm(form, say);
}

async function predict(event) {
  event.preventDefault();
  const {chosen, form} = state;
  if (form === null || state.busy) return;
  tell(null);
  setBusy(true);
  try {
    const path = form.path?.() ?? `predict?model=${encodeURIComponent(chosen.name)}${form.query?.() ?? ""}`;
    const sent = await form.sent();
    const began = performance.now();
    const answer = await post(path, sent.type, sent.body);
    if (state.form !== form) return;
    showAnswer(chosen, path, sent, answer, performance.now() - began);
    reveal(at("answer-card"));
    say(summary(chosen, answer.document));
  } catch (error) {
    failed(error);
  } finally {
    setBusy(false);
  }
}

// On a narrow page what changes may be far below.
function reveal(card) {
  if (card.getBoundingClientRect().top > 0.6 * innerHeight) card.scrollIntoView();
}

function failed(error) {
  tell(error);
  at("answer").replaceChildren(noAnswer());
  if (error.status === 401) refused(error);
  // The model may have gone or failed meanwhile: the list tells.
  if (error.status === 404 || error.status === 503) refresh();
}

function setBusy(busy) {
  state.busy = busy;
  at("predict").setAttribute("aria-disabled", String(busy));
  at("predict").textContent = busy ? "Predicting ..." : "Predict";
  // What stands there until the new answer comes belongs to the request before.
  at("answer").setAttribute("aria-busy", String(busy));
}

function useKey(event) {
  event.preventDefault();
  setKey(at("key").value.trim());
  refresh();
}

at("try-form").addEventListener("submit", predict);
at("try-form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.id === "pad") at("try-form").requestSubmit();
});
at("key-form").addEventListener("submit", useKey);
at("refresh").addEventListener("click", async () => {
  await refresh();
  say(at("count").textContent);
});
at("pick").addEventListener("change", () => { location.hash = `${FRAGMENT}${encodeURIComponent(at("pick").value)}`; });
addEventListener("hashchange", () => {
  if (state.server !== null) show();
  if (location.hash.startsWith(FRAGMENT)) reveal(at(at("try").hidden ? "model" : "try"));
});
// A picture may be dropped anywhere; one for a model that takes none must not replace the page.
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  state.form?.choose?.(event.dataTransfer?.files[0]);
});
addEventListener("paste", (event) => {
  const file = [...event.clipboardData?.files ?? []].find(({type}) => type.startsWith("image/"));
  if (file === undefined || state.form?.choose === undefined) return;
  event.preventDefault();
  state.form.choose(Object.assign(file, {pasted: true}));
});
refresh();

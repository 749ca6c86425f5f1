// An operation of the reference, to try here: its parameters and body as a form, the curl line, and the answer.

import {send, wordsFor} from "./api.js";
import {commandBox} from "./command.js";
import {curlFor, notesFor} from "./curl.js";
import {element, milliseconds, number} from "./elements.js";
import {exampleBody} from "./tensors.js";

const MOST_TEXT = 20000;
const JSON_TYPE = "application/json";
const SHOWN_HEADERS = ["content-type", "x-request-id", "retry-after", "www-authenticate"];
// The bodies that hold a model's inputs, and if these are rows.
const INPUTS = {PredictRequest: true, V1Request: true, InferRequest: false};

// The elements of an operation. `known` has the models, and takes a function that is called when they have changed.
export function tryBox(operation, known) {
  const box = element("details", {class: "try"}, element("summary", {}, "Try it"));
  // Made when it is opened: there are dozens of operations.
  box.addEventListener("toggle", () => {
    if (box.open && box.children.length === 1) box.append(new Trial(operation, known).element);
  });
  return [box];
}

class Trial {
  constructor(operation, known) {
    Object.assign(this, {operation, known, edited: false});
    this.fields = operation.parameters.filter((each) => each.in !== "header").map((each) => this.field(each));
    const types = Object.keys(operation.content);
    this.type = element("select", {id: `${operation.id}-type`, onchange: () => this.show()}, ...types.map((type) => element("option", {value: type}, type)));
    this.text = element("textarea", {id: `${operation.id}-body`, rows: 6, spellcheck: "false", autocomplete: "off",
      oninput: () => { this.edited = true; this.show(); }});
    this.file = element("input", {type: "file", id: `${operation.id}-file`, onchange: () => this.show()});
    this.typeField = labelled("Type of the body", this.type);
    this.textField = labelled("Body", this.text);
    this.fileField = labelled("File", this.file);
    this.command = element("div", {});
    this.problem = element("p", {class: "warning", role: "alert", hidden: true});
    this.button = element("button", {type: "submit", class: "primary"}, "Send");
    this.answer = element("div", {role: "status"});
    this.element = element("form", {novalidate: true, onsubmit: (event) => this.ask(event)},
      element("div", {class: "fields"}, ...this.fields.map((each) => each.field)),
      this.typeField, this.textField, this.fileField, this.command, this.problem, this.button, this.answer);
    known.boxes.push(() => this.refresh());
    this.refresh();
  }

  field(parameter) {
    const id = `${this.operation.id}-${parameter.name}`;
    const choices = parameter.schema?.enum;
    const changed = () => this.refresh();
    const list = element("datalist", {id: `${id}-known`});
    const input = choices ? element("select", {id, onchange: changed}, ...["", ...choices].map((value) => element("option", {value}, value)))
      : element("input", {type: "text", id, autocomplete: "off", spellcheck: "false", list: `${id}-known`, oninput: changed});
    return {parameter, input, list, field: labelled(`${parameter.name}${parameter.required ? " (required)" : ""}`, input, list)};
  }

  // The model that the parameters name.
  model() {
    const named = this.fields.find(({parameter}) => parameter.name === "model")?.input.value;
    return this.known.models.find(({name}) => name === named);
  }

  refresh() {
    const {models} = this.known;
    for (const {parameter, input, list} of this.fields) {
      if (parameter.name !== "model") continue;
      list.replaceChildren(...models.map(({name}) => element("option", {value: name})));
      if (input.value === "" && models.length > 0 && document.activeElement !== input) input.value = models[0].name;
    }
    const version = this.fields.find(({parameter}) => parameter.name === "version")?.input;
    if (version && version.value === "" && document.activeElement !== version) version.value = this.model()?.version ?? "";
    if (!this.edited) this.text.value = this.example();
    this.show();
  }

  example() {
    const schema = this.operation.content[JSON_TYPE]?.schema;
    if (schema === undefined) return "";
    const kind = (schema.$ref ?? "").split("/").at(-1);
    if (kind === "CanaryRequest") return '{"version": "1", "share": 0.1}';
    if (!(kind in INPUTS)) return "{}";
    const model = this.model();
    return model === undefined ? "" : exampleBody(model, INPUTS[kind]);
  }

  show() {
    const types = Object.keys(this.operation.content);
    this.typeField.hidden = types.length < 2;
    this.textField.hidden = this.type.value !== JSON_TYPE;
    this.fileField.hidden = types.length === 0 || this.type.value === JSON_TYPE;
    this.problem.hidden = true;
    const sent = this.sent();
    this.command.replaceChildren(...commandBox(`${this.operation.id}-curl`, "curl", curlFor(this.path(), sent, this.method()), notesFor(sent)));
  }

  method() { return this.operation.method.toUpperCase(); }

  path() {
    const query = [];
    let {path} = this.operation;
    for (const {parameter, input} of this.fields) {
      const value = encodeURIComponent(input.value);
      if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, value || `{${parameter.name}}`);
      else if (value !== "") query.push(`${parameter.name}=${value}`);
    }
    return `${path.slice(1)}${query.length > 0 ? `?${query.join("&")}` : ""}`;
  }

  // The body; null for an operation without one, and for an optional one that is empty.
  sent() {
    const type = this.type.value;
    if (Object.keys(this.operation.content).length === 0) return null;
    if (type === JSON_TYPE) return this.text.value === "" ? null : {type, body: this.text.value};
    const file = this.file.files[0] ?? new File([], "FILE");
    if (!type.startsWith("multipart/")) return {type, body: file};
    const form = new FormData();
    form.append("image", file);
    return {type, body: form};
  }

  async ask(event) {
    event.preventDefault();
    const empty = this.fields.find(({parameter, input}) => parameter.required && input.value === "");
    if (empty) return this.refuse(`${empty.parameter.name} is empty.`, empty.input);
    if (!this.fileField.hidden && this.file.files.length === 0) return this.refuse("Choose a file first.", this.file);
    const sent = this.sent();
    const body = sent === null ? {} : {body: sent.body, headers: sent.body instanceof FormData ? {} : {"Content-Type": sent.type}};
    this.button.textContent = "Sending ...";
    try {
      this.showAnswer(await send(this.path(), {method: this.method(), ...body}));
    } catch (error) {
      this.refuse(error.message, this.button);
    } finally {
      this.button.textContent = "Send";
    }
  }

  refuse(text, input) {
    this.problem.textContent = text;
    this.problem.hidden = false;
    input.focus();
  }

  showAnswer({status, ok, headers, text, elapsed}) {
    const found = SHOWN_HEADERS.filter((name) => headers.get(name) !== null).map((name) => `${name}: ${headers.get(name)}`).join("\n");
    const {shown, document} = readable(text);
    this.answer.replaceChildren(
      element("h3", {}, element("span", {class: `code c${String(status)[0]}`}, String(status)), ` in ${milliseconds(elapsed)}`),
      ...(ok ? [] : [element("p", {class: "help"}, wordsFor({status, headers}, document))]),
      element("pre", {tabindex: 0, "aria-label": "Headers of the answer"}, found),
      element("pre", {tabindex: 0, class: "body", "aria-label": "Body of the answer"}, shown));
  }
}

function labelled(title, input, ...more) { return element("div", {}, element("label", {for: input.id}, title), input, ...more); }

// A body as it is shown: short JSON over several lines, and no more than a page can hold.
function readable(text) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    document = undefined;
  }
  const whole = document !== undefined && text.length < MOST_TEXT / 4 ? JSON.stringify(document, null, 1) : text;
  return {document, shown: whole.length <= MOST_TEXT ? whole : `${whole.slice(0, MOST_TEXT)} ... (${number(whole.length)} characters)`};
}

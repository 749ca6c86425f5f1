// The API's reference, from the server's own /openapi.json.

import {getJson, setKey} from "./api.js";
import {at, counted, element} from "./elements.js";
import {marked, schemaOf} from "./schema.js";
import {tryBox} from "./trying.js";

// The models that are ready, and what is to be done when they are other ones.
const known = {models: [], boxes: []};
const METHODS = ["get", "post", "put", "patch", "delete"];

async function start() {
  try {
    show((await getJson("openapi.json")).document);
    await nameModels();
  } catch (error) {
    at("error").textContent = error.message;
    at("error").hidden = false;
  }
}

// The models, for examples; a server with keys names them to those who have one.
async function nameModels() {
  try {
    known.models = (await getJson("models.json")).document.models.filter((model) => model.state === "ready");
    at("key-help").textContent = "";
  } catch (error) {
    known.models = [];
    at("key-card").hidden = error.status !== 401;
    at("key-help").textContent = error.status === 401 ? "This server asks for an API key. It is kept in this page only." : error.message;
  }
  for (const refresh of known.boxes) refresh();
}

async function useKey(event) {
  event.preventDefault();
  setKey(at("key").value.trim());
  await nameModels();
}

function show(api) {
  const operations = operationsOf(api);
  at("version").textContent = `${api.info.title} ${api.info.version}`;
  at("count").textContent = counted(operations.length, "operation");
  at("description").replaceChildren(...paragraphs(api.info.description ?? ""));
  const groups = grouped(operations);
  at("contents").replaceChildren(...[...groups].flatMap(([group, members]) => [
    element("h3", {}, group),
    element("ul", {class: "contents"}, ...members.map((each) => element("li", {}, element("a", {href: `#${each.id}`}, method(each), " ", breakable(each.path))))),
  ]));
  at("operations").replaceChildren(...operations.map((each) => card(api, each)));
  // The browser looked for the fragment before there was anything to find.
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

function operationsOf(api) {
  return Object.entries(api.paths).flatMap(([path, item]) => METHODS.filter((name) => name in item).map((name) => ({
    ...item[name], path, method: name, shared: item.parameters ?? [], group: item[name].tags?.[0] ?? "Other",
    id: `${name}${path}`.replace(/[^A-Za-z0-9]+/g, "-").replace(/-$/, ""),
  })));
}

function grouped(operations) {
  const groups = new Map();
  for (const each of operations) groups.set(each.group, [...(groups.get(each.group) ?? []), each]);
  return groups;
}

function method(operation) { return element("span", {class: `method ${operation.method}`}, operation.method.toUpperCase()); }

// A path that may be broken after each slash.
function breakable(path) {
  return element("code", {}, ...path.split("/").flatMap((part, k) => (k === 0 ? [part] : ["/", element("wbr"), part])));
}

function card(api, operation) {
  return element("section", {class: "card operation", id: operation.id, "aria-labelledby": `${operation.id}-title`},
    element("h2", {id: `${operation.id}-title`}, method(operation), " ", breakable(operation.path)),
    ...toldOf(operation),
    ...parametersOf(api, [...operation.shared, ...(operation.parameters ?? [])].map((each) => resolved(api, each))),
    ...bodyOf(api, operation.requestBody),
    ...tryBox(operationFor(api, operation), known),
    element("h3", {}, "Answers"), answersOf(api, operation.responses));
}

// An operation with all references followed, for trying it.
function operationFor(api, operation) {
  const parameters = [...operation.shared, ...(operation.parameters ?? [])].map((each) => resolved(api, each));
  return {...operation, parameters, content: resolved(api, operation.requestBody)?.content ?? {}};
}

// The summary, unless the description begins with it.
function toldOf({summary = "", description = ""}) {
  const told = paragraphs(description);
  return description.startsWith(summary) ? told : [element("p", {class: "summary"}, summary), ...told];
}

function resolved(api, part) {
  if (part?.$ref === undefined) return part;
  return part.$ref.replace("#/", "").split("/").reduce((place, name) => place?.[name], api);
}

function parametersOf(api, parameters) {
  if (parameters.length === 0) return [];
  const rows = parameters.map((each) => element("tr", {},
    element("th", {scope: "row"}, element("code", {}, each.name)),
    element("td", {}, each.required ? `${each.in}, required` : each.in),
    element("td", {}, ...marked(each.description ?? ""))));
  return [element("h3", {}, "Parameters"), table(["Name", "Where", "Meaning"], rows)];
}

function bodyOf(api, body) {
  const found = resolved(api, body);
  if (found === undefined) return [];
  return [element("h3", {}, "Body"), ...paragraphs(found.description ?? ""), ...contentOf(api, found.content)];
}

function contentOf(api, content) {
  return Object.entries(content ?? {}).flatMap(([type, {schema, example, examples}]) => {
    const shown = [example, ...Object.values(examples ?? {}).map((each) => each.value)].filter((each) => each !== undefined);
    return [
      element("p", {class: "type"}, element("code", {}, type)),
      ...(schema === undefined ? [] : [schemaOf(api, schema)]),
      ...shown.map((each) => element("pre", {tabindex: 0, "aria-label": "Example"}, typeof each === "string" ? each : JSON.stringify(each, null, 1))),
    ];
  });
}

function answersOf(api, responses) {
  const rows = Object.entries(responses).map(([code, response]) => {
    const found = resolved(api, response);
    const headers = Object.keys(found.headers ?? {});
    // Every failure has the same body; the introduction says which.
    const content = Number(code) < 400 ? contentOf(api, found.content) : [];
    return element("tr", {}, element("th", {scope: "row"}, element("span", {class: `code c${code[0]}`}, code)),
      element("td", {}, ...paragraphs(found.description ?? ""),
        ...(headers.length > 0 ? [element("p", {class: "help"}, `Headers: ${headers.join(", ")}`)] : []),
        ...(content.length > 0 ? [element("details", {}, element("summary", {}, "Content"), ...content)] : [])));
  });
  return table(["Code", "Meaning"], rows);
}

function table(titles, rows) {
  return element("table", {}, element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", {scope: "col"}, title)))),
    element("tbody", {}, ...rows));
}

function paragraphs(text) {
  return text.split(/\n\s*\n/).filter((part) => part.trim() !== "").map((part) => element("p", {}, ...marked(part.trim())));
}

at("key-form").addEventListener("submit", useKey);
start();

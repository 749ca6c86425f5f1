// A JSON schema as nested lists: names, types, limits and what they mean.

import {element} from "./elements.js";

const LIMITS = {
  minimum: "at least", maximum: "at most", exclusiveMinimum: "more than", exclusiveMaximum: "less than", minItems: "items at least",
  maxItems: "items at most", minLength: "characters at least", maxLength: "characters at most", pattern: "matches", default: "default",
};

export function schemaOf(api, schema) {
  return element("div", {class: "schema"}, element("p", {}, wordsOf(api, schema), ...described(api, schema)), ...members(api, schema, []));
}

// Text with what stands in backquotes as code.
export function marked(text) {
  return text.split("`").map((part, k) => (k % 2 === 1 ? element("code", {}, part) : part));
}

function followed(api, schema) {
  return schema.$ref === undefined ? schema : api.components?.schemas?.[schema.$ref.split("/").at(-1)] ?? {};
}

// What a value is, in one line: "array of InputTensor", "integer, at least 0".
function wordsOf(api, schema) {
  const found = followed(api, schema);
  const limits = Object.entries(LIMITS).filter(([key]) => key in found).map(([key, words]) => `${words} ${JSON.stringify(found[key])}`);
  return element("span", {class: "help"}, [typeOf(api, schema), ...limits].join(", "));
}

function typeOf(api, schema) {
  const found = followed(api, schema);
  if (schema.$ref !== undefined && found.properties) return schema.$ref.split("/").at(-1);
  if (found.items) return `array of ${typeOf(api, found.items)}`;
  if (found.enum) return `one of ${found.enum.map((value) => JSON.stringify(value)).join(", ")}`;
  if ("const" in found) return JSON.stringify(found.const);
  const choices = found.anyOf ?? found.oneOf;
  if (choices) return choices.map((each) => typeOf(api, each)).join(", or ");
  const type = [found.type ?? "any value"].flat().join(" or ");
  return found.format ? `${type} (${found.format})` : type;
}

function described(api, schema) {
  const text = schema.description ?? followed(api, schema).description;
  return text ? [" ", ...marked(text)] : [];
}

// The members of an object, of an array's objects, or of each choice; one inside itself is not shown again.
function members(api, schema, seen) {
  if (schema.$ref !== undefined && seen.includes(schema.$ref)) return [];
  const inside = schema.$ref === undefined ? seen : [...seen, schema.$ref];
  const found = followed(api, schema);
  const required = found.required ?? [];
  const own = Object.entries(found.properties ?? {}).flatMap(([name, inner]) => [
    element("dt", {}, element("code", {}, name), " ", wordsOf(api, inner), element("small", {}, required.includes(name) ? "" : " optional")),
    element("dd", {}, ...described(api, inner), ...members(api, inner, inside)),
  ]);
  const inner = [found.items, found.additionalProperties, ...(found.anyOf ?? found.oneOf ?? []), ...(found.allOf ?? [])];
  const deeper = inner.filter((each) => typeof each === "object").flatMap((each) => members(api, each, inside));
  return [...(own.length > 0 ? [element("dl", {}, ...own)] : []), ...deeper];
}

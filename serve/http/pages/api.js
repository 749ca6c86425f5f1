// Requests to this server. A key is kept in this variable only: it's gone with the page.

let key = "";

export function setKey(text) { key = text; }
export function hasKey() { return key !== ""; }

// What went wrong, in words; `status` is 0 where no answer came, `id` is the request's, for the server's log.
class Failure extends Error {
  constructor(status, text, id = "") {
    super(text);
    Object.assign(this, {status, id});
  }
}

// Paths are relative to the page, so that it works behind a proxy under a prefix, too.
export function addressOf(path) { return new URL(path, document.baseURI).href; }

export function getJson(path) { return answered(path, {cache: "no-store"}); }

export function post(path, type, body) { return answered(path, {method: "POST", body, headers: {"Content-Type": type}}); }

// An answer of any status; a Failure where none came.
export async function send(path, options) {
  const headers = {...options.headers, ...(hasKey() ? {Authorization: `Bearer ${key}`} : {})};
  const began = performance.now();
  let response;
  try {
    response = await fetch(addressOf(path), {...options, headers});
  } catch {
    throw new Failure(0, "The server does not answer. Is it still running, and can this machine reach it?");
  }
  const text = await response.text();
  return {status: response.status, ok: response.ok, headers: response.headers, text, elapsed: performance.now() - began};
}

async function answered(path, options) {
  const response = await send(path, options);
  const document = parsed(response.text);
  const id = response.headers.get("X-Request-Id") ?? "";
  if (!response.ok) throw new Failure(response.status, wordsFor(response, document), id);
  if (document === undefined) throw new Failure(response.status, "The server's answer is no JSON.", id);
  return {document, text: response.text, id};
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const ADVICE = {
  401: "Give the API key that this server was started with.",
  413: "Use a smaller picture, or send fewer rows.",
  429: "It is busy: try again",
  503: "Try again",
  504: "The model took too long; the work was dropped.",
};

// The server's words, and what to do; Retry-After says when.
export function wordsFor({status, headers}, document) {
  const said = typeof document?.error === "string" ? document.error : `The server answered with ${status}.`;
  const sentence = said.charAt(0).toUpperCase() + said.slice(1);
  const ended = /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
  const advice = ADVICE[status];
  if (advice === undefined) return ended;
  const seconds = Number(headers.get("Retry-After") ?? 0);
  const when = seconds > 0 ? `in ${seconds} ${seconds === 1 ? "second" : "seconds"}.` : "in a moment.";
  return `${ended} ${advice}${advice.endsWith("again") ? ` ${when}` : ""}`;
}

// Requests to this server. A key is kept in this variable only: it's gone with the page.

let key = "";

export function setKey(text) { key = text; }
export function hasKey() { return key !== ""; }

// What went wrong, in words; `status` is 0 where no answer came.
class Failure extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// Paths are relative to the page, so that it works behind a proxy under a prefix, too.
export function addressOf(path) { return new URL(path, document.baseURI).href; }

export function getJson(path) { return answered(path, {cache: "no-store"}); }

export function post(path, type, body) { return answered(path, {method: "POST", body, headers: {"Content-Type": type}}); }

async function answered(path, options) {
  const headers = {...options.headers, ...(key === "" ? {} : {Authorization: `Bearer ${key}`})};
  let response;
  try {
    response = await fetch(addressOf(path), {...options, headers});
  } catch {
    throw new Failure(0, "The server does not answer. Is it still running, and can this machine reach it?");
  }
  const text = await response.text();
  const document = parsed(text);
  if (!response.ok) throw new Failure(response.status, wordsFor(response, document));
  if (document === undefined) throw new Failure(response.status, "The server's answer is no JSON.");
  return {document, text};
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
  429: "The model is busy: try again in a moment.",
  503: "Try again in a moment.",
  504: "The model took too long; the work was dropped.",
};

function wordsFor(response, document) {
  const said = typeof document?.error === "string" ? document.error : `The server answered with ${response.status}.`;
  const sentence = said.charAt(0).toUpperCase() + said.slice(1);
  const ended = /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
  return ADVICE[response.status] ? `${ended} ${ADVICE[response.status]}` : ended;
}

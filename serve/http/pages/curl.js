// The command line that sends what the page sent.

import {addressOf, hasKey} from "./api.js";

function quoted(text) { return `'${text.replaceAll("'", "'\\''")}'`; }

function base64(bytes) { return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")); }

// `sent` is what a form hands over: its type, and its body as text, bytes, a file, or fields with a file; none for a GET.
export function curlFor(path, sent, method = "POST") {
  const lines = [`curl -sS ${quoted(addressOf(path))}`];
  if (method !== "GET" && sent === null) lines.push(`-X ${method}`);
  if (sent !== null && !(sent.body instanceof FormData)) lines.push(`-H ${quoted(`Content-Type: ${sent.type}`)}`);
  if (hasKey()) lines.push('-H "Authorization: Bearer $TRNRT_API_KEY"');
  if (sent !== null) addBody(lines, sent.body);
  return lines.join(" \\\n  ");
}

function addBody(lines, body) {
  if (body instanceof FormData) for (const [name, file] of body) lines.push(`-F ${quoted(`${name}=@"${file.name.replace(/["\\]/g, "\\$&")}"`)}`);
  else if (body instanceof File) lines.push(`--data-binary ${quoted(`@${body.name}`)}`);
  else if (typeof body === "string") lines.push(`--data-raw ${quoted(body)}`);
  else {
    lines.unshift(`printf %s ${quoted(base64(body))}`, "| base64 -d |");
    lines.push("--data-binary @-");
  }
}

export function notesFor(sent) {
  const notes = [];
  if (sent?.body instanceof File) notes.push(sent.body.pasted ? `Save the picture as ${sent.body.name} first.` : "Run it in the folder that has the picture.");
  if (sent?.body instanceof Uint8Array) notes.push("The text is the drawing as a PNG file, in base64.");
  if (hasKey()) notes.push("It takes your key from the environment variable TRNRT_API_KEY.");
  return notes.join(" ");
}

// The command line that sends what the page sent.

import {addressOf, hasKey} from "./api.js";

function quoted(text) { return `'${text.replaceAll("'", "'\\''")}'`; }

function base64(bytes) { return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")); }

// `sent` is what a form hands over: its type, and its body as text, bytes or a file.
export function curlFor(path, sent) {
  const lines = [`curl -sS ${quoted(addressOf(path))}`, `-H ${quoted(`Content-Type: ${sent.type}`)}`];
  if (hasKey()) lines.push('-H "Authorization: Bearer $TRNRT_API_KEY"');
  if (sent.body instanceof File) lines.push(`--data-binary ${quoted(`@${sent.body.name}`)}`);
  else if (typeof sent.body === "string") lines.push(`--data-raw ${quoted(sent.body)}`);
  else {
    lines.unshift(`printf %s ${quoted(base64(sent.body))}`, "| base64 -d |");
    lines.push("--data-binary @-");
  }
  return lines.join(" \\\n  ");
}

export function notesFor(sent) {
  const notes = [];
  if (sent.body instanceof File) notes.push("Run it in the folder that has the picture.");
  if (sent.body instanceof Uint8Array) notes.push("The text is the drawing as a PNG file, in base64.");
  if (hasKey()) notes.push("It takes your key from the environment variable TRNRT_API_KEY.");
  return notes.join(" ");
}

// A command line that can be copied.

import {element} from "./elements.js";

// The title with a button, and the line; `name` begins the ids.
export function commandBox(name, title, text, note = "") {
  const code = element("pre", {id: name, tabindex: 0, "aria-labelledby": `${name}-title`}, text);
  const said = element("span", {class: "help", role: "status"});
  const copy = async () => { said.textContent = (await copied(code)) ? "Copied." : "Select it and press Ctrl+C."; };
  return [
    element("div", {class: "title"}, element("h3", {id: `${name}-title`}, title),
      element("div", {class: "tools"}, said, element("button", {type: "button", class: "copy", onclick: copy}, "Copy"))),
    code, ...(note === "" ? [] : [element("p", {class: "help"}, note)]),
  ];
}

// Pages that come over plain HTTP from another machine have no clipboard: there the text is selected and copied.
async function copied(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return document.execCommand("copy");
  }
}

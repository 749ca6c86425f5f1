// The kernel's source beside its timeline: a file at a time, with what each line costs.

const uses = new Map(report.lines.map((use) => [`${use.file}:${use.line}`, use]));
const places = new Map(report.places.map(([text, file, line]) => [text, {file, line}]));
const longestPath = report.lines.reduce((most, use) => Math.max(most, use.path), 0);

function samePlace(a, b) { return a !== null && b !== null && a.file === b.file && a.line === b.line; }
function useOf(place) { return uses.get(`${place.file}:${place.line}`); }
function placeText({file, line}) { return file === 0 ? `line ${line}` : `line ${line} of ${report.sources[file].name}`; }
function shareText(share) { return share === 0 ? "" : share < 0.001 ? "<0.1 %" : `${(100 * share).toFixed(1)} %`; }

function codeOf({file, line}) {
  for (const [first, lines] of report.sources[file]?.parts ?? []) {
    if (line >= first && line < first + lines.length) return lines[line - first].trim();
  }
  return "";
}

// The line that issued a span's instruction.
function ownPlace(core, span) {
  if (core.other) return null;
  return places.get(core.instructions.source[core.instruction(span)]) ?? null;
}

// The line of the kernel's function that led to it; the same if no helper issued it.
function entryPlace(core, span) {
  const line = core.instructions.line[core.instruction(span)];
  return report.entry === OTHER || line === 0 ? null : {file: report.entry, line};
}

// For each instruction of a core 1 if it is of a line: issued there, or by a helper that the line calls.
function linesMask(core, place) {
  const {source, line} = core.instructions;
  const own = new Set(report.places.filter(([, file, at]) => samePlace({file, line: at}, place)).map(([text]) => text));
  const called = place.file === report.entry ? place.line : OTHER;
  return Uint8Array.from(source, (text, k) => (own.has(text) || line[k] === called ? 1 : 0));
}

function pathBar(use) {
  const bar = element("i", {class: "path-bar"});
  bar.style.width = `${longestPath ? 100 * use.path / longestPath : 0}%`;
  return bar;
}

function busyTotal(use) { return Object.values(use.busy).reduce((sum, time) => sum + time, 0); }

// How much longer a line is on the critical path than in the other run; "new" if that has no such line.
function changeText(use) {
  if (use === undefined) return "";
  if (use.before === undefined) return "new";
  const by = use.path - use.before;
  return by === 0 ? "" : `${by > 0 ? "+" : "-"}${timeText(Math.abs(by))}`;
}

// The other run's lines are known, unless it is a model's document.
const linesBefore = report.against?.lines ?? false;

function changeCell(use) {
  if (!linesBefore) return [];
  const text = changeText(use);
  const kind = text.startsWith("-") ? "better" : text === "" ? "" : "worse";
  return [element("td", {class: "change"}, element("span", {class: kind}, text))];
}

class Source {
  // `choose` gets the place that was clicked.
  constructor(tabs, scroll, choose) {
    Object.assign(this, {tabs, scroll, choose, file: OTHER, rows: new Map(), chosen: null});
    this.shown = report.sources.map((source, file) => ({...source, file})).filter((source) => source.parts.length > 0);
    tabs.replaceChildren(...this.shown.map((source) => this.tab(source)));
    tabs.hidden = this.shown.length < 2;
    tabs.addEventListener("keydown", (event) => this.onTabKey(event));
    scroll.addEventListener("keydown", (event) => this.onKey(event));
    if (this.shown.length > 0) this.open(this.shown[0].file);
    else scroll.replaceChildren(element("p", {class: "empty"}, "The source could not be read."));
  }

  tab({file, name, path}) {
    const attributes = {type: "button", role: "tab", title: path, "data-file": file, "aria-controls": "source", onclick: () => this.open(file)};
    return element("button", attributes, name);
  }

  onTabKey(event) {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const now = this.shown.findIndex(({file}) => file === this.file);
    this.open(this.shown[(now + by + this.shown.length) % this.shown.length].file);
    this.tabs.querySelector("[aria-selected='true']").focus();
  }

  open(file) {
    if (file === this.file) return;
    this.file = file;
    this.rows = new Map();
    for (const tab of this.tabs.children) {
      const selected = Number(tab.dataset.file) === file;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
    }
    const body = element("tbody");
    for (const [number, [first, lines]] of report.sources[file].parts.entries()) {
      if (number) body.append(element("tr", {class: "gap"}, element("td", {colspan: 5}, "\u22ee")));
      lines.forEach((text, k) => body.append(this.row({file, line: first + k}, text)));
    }
    const change = linesBefore ? ["Change"] : [];
    const heads = ["Line", "Path", "Engines", ...change, ""].map((text) => element("th", {scope: "col"}, text));
    this.scroll.replaceChildren(element("table", {class: "code"}, element("thead", {}, element("tr", {}, ...heads)), body));
    this.buttons = [...this.scroll.querySelectorAll("button")];
    this.buttons.forEach((button, k) => { button.tabIndex = k ? -1 : 0; });
    this.scroll.scrollTop = 0;
    this.mark(this.marked ?? []);
  }

  row(place, text) {
    const use = useOf(place);
    const code = element("td", {class: "text"}, element("code", {}, text));
    if (use === undefined) {
      return element("tr", {}, element("td", {class: "at"}, String(place.line)), element("td", {class: "path"}), element("td", {class: "busy"}), ...changeCell(), code);
    }
    const share = shareText(use.share);
    const busy = busyTotal(use);
    const said = `${placeText(place)}: ${share || "nothing"} of the critical path, ${timeText(busy)} on engines`;
    const button = element("button", {type: "button", "aria-pressed": "false", "aria-label": said}, String(place.line));
    const row = element(
      "tr", {class: "used", title: said, onclick: () => this.choose(place)}, element("td", {class: "at"}, button),
      element("td", {class: "path"}, pathBar(use), element("span", {}, share)), element("td", {class: "busy"}, busy ? timeText(busy) : ""), ...changeCell(use), code,
    );
    row.dataset.line = place.line;
    this.rows.set(place.line, row);
    return row;
  }

  onKey(event) {
    const by = {ArrowUp: -1, ArrowDown: 1}[event.key];
    const now = this.buttons?.indexOf(document.activeElement) ?? -1;
    if (by === undefined || now < 0) return;
    event.preventDefault();
    this.focus(this.buttons[Math.min(Math.max(now + by, 0), this.buttons.length - 1)]);
  }

  focus(button) {
    for (const other of this.buttons) other.tabIndex = other === button ? 0 : -1;
    button.focus({preventScroll: true});
    this.reveal(button.closest("tr"));
  }

  // The chosen line, whose instructions the timeline shows alone.
  press(place) {
    this.chosen = place;
    if (place !== null) this.show(place);
    for (const [line, row] of this.rows) {
      row.querySelector("button").setAttribute("aria-pressed", String(samePlace(place, {file: this.file, line})));
    }
  }

  // The lines of an instruction: its own one, and the one that called its helper.
  mark(found) {
    this.marked = found;
    for (const [line, row] of this.rows) {
      row.classList.toggle("own", samePlace(found[0] ?? null, {file: this.file, line}));
      row.classList.toggle("calls", found.slice(1).some((place) => samePlace(place, {file: this.file, line})));
      row.querySelector("button").setAttribute("aria-pressed", String(samePlace(this.chosen, {file: this.file, line})));
    }
  }

  // The line with the largest part of the critical path in the file that is open.
  showLongest() {
    const lines = report.lines.filter(({file, path}) => file === this.file && path > 0);
    if (lines.length > 0) this.reveal(this.rows.get(lines.reduce((most, use) => (use.path > most.path ? use : most)).line));
  }

  // Open a line's file, and scroll the pane (not the page) to it.
  show(place) {
    if (!this.shown.some(({file}) => file === place.file)) return;
    this.open(place.file);
    this.reveal(this.rows.get(place.line));
  }

  reveal(row) {
    if (row === undefined || row === null) return;
    const [top, bottom] = [row.offsetTop, row.offsetTop + row.offsetHeight];
    const head = this.scroll.querySelector("thead").offsetHeight;
    if (top - head < this.scroll.scrollTop || bottom > this.scroll.scrollTop + this.scroll.clientHeight) {
      this.scroll.scrollTop = top - (this.scroll.clientHeight - row.offsetHeight) / 2;
    }
  }
}

// What a line costs, in the panel.
function showLine(panel, core, place, select) {
  const use = useOf(place);
  const list = element("dl");
  field(list, "On the path", "path", `${timeText(use.path)}${use.share ? `, ${shareText(use.share)} of it` : ""}`);
  field(list, "On engines", "busy", ...Object.entries(use.busy).map(([name, time]) => element("div", {}, `${name} ${timeText(time)}`)));
  field(list, "Instructions", "instructions", use.instructions.toLocaleString("en-US"));
  const mask = linesMask(core, place);
  const spans = Array.from({length: core.issues}, (_, span) => span).filter((span) => mask[core.instruction(span)]);
  if (spans.length > 0) {
    const longest = spans.reduce((most, span) => (core.end[span] - core.start[span] > core.end[most] - core.start[most] ? span : most));
    const links = [["first", spans[0]], ["longest", longest], ["last", spans.at(-1)]].map(([name, span]) =>
      element("div", {}, element("button", {type: "button", class: "link", onclick: () => select(span)}, `${name}: ${core.label(span)} at ${momentText(core.start[span])}`)));
    field(list, "Show", "show", ...links);
  }
  const code = codeOf(place);
  field(list, "Source", "source", code ? element("code", {}, code) : "");
  const title = element("h3", {"data-field": "line"}, placeText(place));
  delete panel.dataset.span;
  panel.replaceChildren(title, element("p", {class: "under"}, "Its instructions stand out in the timeline; Esc shows all again."), list);
}

// The page: what is shown, and what pointer, wheel, keys and buttons do to it.

const at = (id) => document.getElementById(id);
const cores = report.cores.map((raw) => new Core(raw));
const coresBefore = (report.against?.cores ?? []).map((raw) => new Core(raw, true));
const timeline = new Timeline(at("timeline"));
const source = new Source(at("files"), at("source"), clickLine);
const state = {core: 0, mode: "step", hovered: OTHER, pinned: OTHER, before: OTHER, alone: null, line: null, mask: null, tile: null, whole: false, memory: "bytes", keys: []};
let memories = [];
let changes = new Map();
let frame = 0;

const core = () => cores[state.core];
const selected = () => (state.hovered !== OTHER ? state.hovered : state.pinned);

// The core of the other run; undefined without one. Of a run on fewer cores its last one.
const coreBefore = () => coresBefore[Math.min(state.core, coresBefore.length - 1)];

// Of each step, by how much it changed on the critical path since the other run: a colour's number.
function stepChanges() {
  if (report.against?.changes) return new Map(report.against.changes.map(({kind}, step) => [step, CHANGES + kind]));
  const totals = new Map();
  const {step, line} = core().instructions;
  const seen = new Set();
  step.forEach((number, k) => {
    const use = number === OTHER || report.entry === OTHER ? undefined : useOf({file: report.entry, line: line[k]});
    if (use === undefined || seen.has(use)) return;
    seen.add(use);
    const {path, before} = totals.get(number) ?? {path: 0, before: undefined};
    totals.set(number, {path: path + use.path, before: use.before === undefined ? before : (before ?? 0) + use.before});
  });
  return new Map([...totals].map(([number, {path, before}]) => {
    const by = before === undefined ? 3 : path > before ? 0 : path < before ? 1 : 2;
    return [number, CHANGES + by];
  }));
}

// What decides a span's colour: its step, its operation, or the change of its step.
function keyOf(span, of = core()) {
  const number = of.instruction(span);
  if (state.mode === "change") return changes.get(of.instructions.step[number]) ?? CHANGES + 3;
  return state.mode === "step" ? of.instructions.step[number] : of.instructions.operation[number];
}

function redraw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    drawNow();
  });
}

// The steps of a chosen line of the kernel's function: the other run's bars of the same line have them, too.
function chosenSteps() {
  if (state.mask === null || state.line.file !== report.entry) return new Set();
  return new Set(core().instructions.step.filter((step, k) => state.mask[k] && step !== OTHER));
}

function drawNow() {
  const stepsOfLine = coreBefore() === undefined ? new Set() : chosenSteps();
  const colours = new Map(state.keys.map((key, place) => [key, place]));
  const paint = (key) => (key === OTHER ? OTHER : state.mode === "operation" ? colours.get(key) ?? OTHER : key);
  const isFaded = (key) => state.alone !== null && key !== state.alone;
  timeline.draw({
    selected: selected(),
    pinned: state.pinned !== OTHER && selected() === state.pinned,
    paint: (span) => paint(keyOf(span)),
    faded: (span) => isFaded(keyOf(span)) || (state.mask !== null && !state.mask[core().instruction(span)]),
    before: {
      paint: (span) => paint(keyOf(span, coreBefore())),
      faded: (span) => isFaded(keyOf(span, coreBefore())) || (state.line !== null && span !== state.before && !stepsOfLine.has(coreBefore().step(span))),
    },
  });
  for (const memory of memories) memory.draw(state.tile?.memory === memory ? state.tile.tile : OTHER);
}

// The panel shows an instruction, or else the chosen line; the source marks the instruction's lines.
function showPanel() {
  const span = selected();
  if (state.before !== OTHER) showSpan(at("panel"), coreBefore(), state.before, showBefore);
  else if (span === OTHER && state.line !== null) showLine(at("panel"), core(), state.line, goTo);
  else if (span === OTHER) showOverview(at("panel"), core(), {select: goTo, choose: chooseLine});
  else showSpan(at("panel"), core(), span, goTo);
  source.mark(span === OTHER ? [] : [ownPlace(core(), span), entryPlace(core(), span)].filter((place) => place !== null));
}

// Show an instruction of the other run.
function showBefore(span) {
  state.before = span;
  showPanel();
  redraw();
}

function pin(span) {
  Object.assign(state, {pinned: span, hovered: OTHER, before: OTHER});
  const place = span === OTHER ? null : ownPlace(core(), span);
  if (place !== null) source.show(place);
  showPanel();
  redraw();
}

// A click on a chosen line lets it go; but an instruction that is pinned first.
function clickLine(place) { chooseLine(samePlace(state.line, place) && state.pinned === OTHER ? null : place); }

// Let a line's instructions stand out; null lets all of them again.
function chooseLine(place) {
  Object.assign(state, {line: place, mask: place && linesMask(core(), place), pinned: OTHER, hovered: OTHER, before: OTHER});
  source.press(place);
  if (place !== null && !isLineInView()) showAll();
  showPanel();
  redraw();
}

function isLineInView() {
  for (let span = 0; span < core().issues; span++) {
    if (state.mask[core().instruction(span)] && core().end[span] > view.from && core().start[span] < view.to) return true;
  }
  return false;
}

// Pin a span, and pan where it is out of sight.
function goTo(span) {
  const [start, end] = [core().start[span], core().end[span]];
  if (end <= view.from || start >= view.to) {
    const half = (view.to - view.from) / 2;
    show((start + end) / 2 - half, (start + end) / 2 + half);
  }
  pin(span);
}

function setCore(number) {
  Object.assign(state, {core: number, hovered: OTHER, pinned: OTHER, before: OTHER, tile: null, alone: null});
  state.mask = state.line && linesMask(core(), state.line);
  const launch = Math.max(core().launch, coreBefore()?.launch ?? 0);
  const whole = launch + Math.max(core().duration, coreBefore()?.duration ?? 0);
  Object.assign(view, {from: -launch, to: whole - launch, start: -launch, whole, cursor: null});
  timeline.setCore(core(), coreBefore());
  changes = stepChanges();
  buildMemories();
  buildLegend();
  showPanel();
}

function buildMemories() {
  memories = [];
  const parts = core().memories.filter((memory) => memory.byte.length > 0).flatMap((memory) => {
    const label = `${memory.name}: ${memory.byte.length} tiles over time; up and down arrow go from change to change, or from tile to tile`;
    const canvas = element("canvas", {tabindex: 0, role: "application", "aria-label": label});
    const picture = new Memory(canvas);
    picture.setMemory(memory);
    picture.title = element("small");
    memories.push(picture);
    navigable(canvas, (x, y) => overMemory(picture, x, y), () => {});
    canvas.addEventListener("keydown", (event) => onMemoryKey(event, picture));
    return [element("h3", {}, memory.name, picture.title), labelKey(picture.live), canvas];
  });
  at("memories").replaceChildren(...parts, ...(parts.length ? [] : [element("p", {}, "No tile has an address.")]));
  scaleMemories();
}

function labelKey(live) {
  const labels = live.ownLabels();
  const items = labels.map((label, rank) => element("li", {}, element("i", {class: "swatch", "data-swatch": rank}), element("span", {}, label)));
  if (labels.length < live.ranks.size) items.push(element("li", {}, element("i", {class: "swatch"}), element("span", {}, "others")));
  const list = element("ul", {class: "keys"}, ...items);
  paintSwatches(list);
  return list;
}

function paintSwatches(within) {
  for (const swatch of within.querySelectorAll("[data-swatch]")) swatch.style[swatch.tagName === "I" ? "background" : "fill"] = colour(Number(swatch.dataset.swatch));
}

function scaleMemories() {
  for (const memory of memories) {
    memory.setScale(state.whole, state.memory);
    memory.title.textContent = memory.summary(state.memory);
  }
  state.tile = null;
  showMost();
  redraw();
}

// With nothing chosen, the panel shows what is alive when most is.
function showMost() {
  const most = memories[0]?.live;
  if (most === undefined) at("memory-panel").replaceChildren();
  else showAlive(at("memory-panel"), most, most.when);
}

function overMemory(picture, x, y) {
  const width = picture.canvas.clientWidth;
  view.cursor = x >= gutter(width) && x <= width ? timeAt(x, width) : null;
  if (state.memory === "addresses") showTileOf(picture, picture.hit(x, y));
  else if (view.cursor !== null) showAlive(at("memory-panel"), picture.live, view.cursor);
  redraw();
}

function showTileOf(picture, tile) {
  state.tile = tile === OTHER ? null : {memory: picture, tile};
  if (tile === OTHER) showMost();
  else showTile(at("memory-panel"), picture.memory, tile);
  redraw();
}

// Steps in their order, operations by the time they take; those that are used, and how often.
function buildLegend() {
  const times = new Map();
  for (let span = 0; span < core().issues; span++) {
    times.set(keyOf(span), (times.get(keyOf(span)) ?? 0) + core().end[span] - core().start[span]);
  }
  state.keys = [...times.keys()].sort((a, b) => (state.mode === "operation" ? times.get(b) - times.get(a) : a - b));
  at("legend").replaceChildren(...state.keys.map((key, place) => legendItem(key, place)));
}

function legendItem(key, place) {
  const names = {step: (step) => report.steps[step].name, operation: (text) => texts[text], change: (change) => CHANGE_NAMES[change - CHANGES]};
  const name = key === OTHER ? "no step" : names[state.mode](key);
  const swatch = element("i", {class: "swatch"});
  swatch.style.background = colour(key === OTHER ? OTHER : state.mode === "operation" ? place : key);
  const pressed = () => {
    state.alone = state.alone === key ? null : key;
    for (const [number, button] of at("legend").querySelectorAll("button").entries()) {
      button.setAttribute("aria-pressed", String(state.keys[number] === state.alone));
    }
    redraw();
  };
  const attributes = {type: "button", "aria-pressed": "false", title: name, onclick: pressed};
  return element("li", {}, element("button", attributes, swatch, element("span", {}, name)));
}

function hover(x, y) {
  const width = timeline.canvas.clientWidth;
  state.hovered = timeline.hit(x, y);
  state.before = state.hovered === OTHER ? timeline.hitBefore(x, y) : OTHER;
  view.cursor = x >= gutter(width) && x <= width ? timeAt(x, width) : null;
  showPanel();
  redraw();
}

function clickBar(x, y) {
  const before = timeline.hitBefore(x, y);
  pin(timeline.hit(x, y));
  if (before !== OTHER) showBefore(before);
}

const NAVIGATION = {
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "_": () => zoom(1 / 0.6), "0": showAll,
};
const PANNING = {ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15)};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const action = NAVIGATION[event.key] ?? (event.target.tagName === "CANVAS" && !event.shiftKey ? PANNING[event.key] : undefined);
  if (action === undefined) return;
  action();
  event.preventDefault();
  redraw();
}

// Keys of the timeline: from bar to bar.
function onBarKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const span = selected();
  const moves = {
    ArrowUp: () => core().beside(span, -1), ArrowDown: () => core().beside(span, 1), Escape: () => OTHER, Enter: () => span,
    w: () => core().producer(span), W: () => core().producer(span),
  };
  if (event.shiftKey) {
    moves.ArrowLeft = () => core().neighbour(span, -1);
    moves.ArrowRight = () => core().neighbour(span, 1);
  }
  if (moves[event.key] === undefined) return;
  event.preventDefault();
  const target = span === OTHER && event.key !== "Escape" ? firstInView() : moves[event.key]();
  if (target !== OTHER) goTo(target);
  else if (event.key === "Escape") letGo();
}

// Of what was chosen, the instruction first, then its line.
function letGo() {
  if (state.pinned === OTHER && state.line !== null) chooseLine(null);
  else pin(OTHER);
}

function firstInView() {
  for (const row of [...core().laneRows.values()].flat()) {
    const position = firstWhere(row, (span) => core().end[span] > view.from);
    if (position < row.length && core().start[row[position]] < view.to) return row[position];
  }
  return OTHER;
}

function onMemoryKey(event, picture) {
  const by = {ArrowUp: -1, ArrowDown: 1}[event.key];
  if (event.key === "Escape") showTileOf(picture, OTHER);
  if (by === undefined || picture.count === 0) return;
  event.preventDefault();
  if (state.memory === "bytes") return stepMoment(picture.live, by);
  const now = state.tile?.memory === picture ? state.tile.tile : by > 0 ? -1 : picture.count;
  return showTileOf(picture, (now + by + picture.count) % picture.count);
}

// Go to the next time, or the one before, at which what is alive changes.
function stepMoment(live, by) {
  const now = view.cursor ?? (by > 0 ? -1 : Infinity);
  const next = by > 0 ? live.times.find((time) => time > now) : live.times.findLast((time) => time < now);
  if (next === undefined) return;
  view.cursor = next;
  if (next < view.from || next > view.to) show(next - (view.to - view.from) / 2, next + (view.to - view.from) / 2);
  showAlive(at("memory-panel"), live, next);
  redraw();
}

// Show a step's time, and it alone in its colour.
function showStep(step) {
  at("colours-step").checked = true;
  Object.assign(state, {mode: "step", alone: null});
  buildLegend();
  const place = state.keys.indexOf(step);
  if (place >= 0) at("legend").querySelectorAll("button")[place].click();
  const {start, end} = report.steps[step];
  const margin = (end - start) * 0.05;
  if (end > start) show(start - margin, end + margin);
  at("timeline").scrollIntoView({block: "center"});
  redraw();
}

// The graphs of a model's steps, its own and the other run's, if there are any; only one is shown.
const graphs = [[report.graph, report.steps], [report.against?.graph, report.against?.steps]]
  .filter(([data]) => data)
  .map(([data, steps]) => new Graph(at("graph"), data, steps, chooseBox, (number) => goToRow(graph.stepHere(number))));
let graph = graphs[0] ?? null;

function chooseBox(number) {
  graph.select(number);
  if (number !== OTHER) graph.reveal(number);
  showBox(at("graph-panel"), graph, number, {row: goToRow, time: showStep, choose: chooseBox});
  markRow(graph.stepHere(number));
}

// Show the graph before or now, at the same place; the box of the same step stays chosen.
function showGraphOf(number) {
  const {scrollLeft, scrollTop} = at("graph");
  const step = graph.stepHere(graph.selected);
  const scale = graph.scale;
  graph = graphs[number];
  for (const [of, text] of ["graph-now", "graph-before"].entries()) at(text).hidden = of !== number;
  graph.draw(true);
  graph.setZoom(scale);
  paintSwatches(at("graph"));
  Object.assign(at("graph"), {scrollLeft, scrollTop});
  const box = graph.data.boxes.findIndex((_, k) => step !== OTHER && graph.stepHere(k) === step);
  chooseBox(box);
}

function markRow(step) {
  for (const link of document.querySelectorAll("#steps-table [data-step]")) {
    link.closest("tr").classList.toggle("chosen", Number(link.dataset.step) === step);
  }
}

function goToRow(step) {
  const link = document.querySelector(`#steps-table [data-step="${step}"]`);
  if (link === null) return;
  markRow(step);
  link.focus({preventScroll: true});
  link.scrollIntoView({block: "center"});
}

function drawGraph() {
  if (graph === null) return;
  graph.draw();
  paintSwatches(at("graph"));
}

function listenToGraph() {
  if (graph === null) return;
  at("graph-in").addEventListener("click", () => graph.zoom(1 / 0.7));
  at("graph-out").addEventListener("click", () => graph.zoom(0.7));
  at("graph-fit").addEventListener("click", () => graph.fit());
  at("graph-choice").hidden = graphs.length < 2;
  for (const radio of document.getElementsByName("graph")) radio.addEventListener("change", () => showGraphOf(Number(radio.value)));
  drawGraph();
  chooseBox(OTHER);
}

function restyle() {
  readTheme();
  paintSwatches(document);
  buildLegend();
  drawRoofline(at("roofline"));
  redraw();
}

function listen() {
  const button = (id, action) => at(id).addEventListener("click", () => { action(); redraw(); });
  button("zoom-in", NAVIGATION["+"]);
  button("zoom-out", NAVIGATION["-"]);
  button("fit", NAVIGATION["0"]);
  button("earlier", PANNING.ArrowLeft);
  button("later", PANNING.ArrowRight);
  for (const radio of document.getElementsByName("colours")) {
    radio.addEventListener("change", () => {
      Object.assign(state, {mode: radio.value, alone: null});
      buildLegend();
      redraw();
    });
  }
  at("full-capacity").addEventListener("change", (event) => {
    state.whole = event.target.checked;
    scaleMemories();
  });
  for (const radio of document.getElementsByName("memory")) {
    radio.addEventListener("change", () => {
      state.memory = radio.value;
      scaleMemories();
    });
  }
  at("core").addEventListener("change", (event) => setCore(Number(event.target.value)));
  for (const link of document.querySelectorAll("[data-step]")) {
    link.addEventListener("click", () => showStep(Number(link.dataset.step)));
  }
  navigable(at("timeline"), hover, clickBar);
  at("timeline").addEventListener("keydown", onBarKey);
  at("source").addEventListener("keydown", (event) => { if (event.key === "Escape") letGo(); });
  document.addEventListener("keydown", onKey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  new ResizeObserver(() => { drawRoofline(at("roofline")); drawGraph(); redraw(); }).observe(document.body);
}

// The lines that the first sentence names, as links into the source.
function linkBottleneck() {
  const links = report.bottleneck.map(([file, line]) =>
    element("button", {type: "button", class: "link", onclick: () => { chooseLine({file, line}); at("timeline-title").scrollIntoView(); }}, `Show ${placeText({file, line})}`));
  at("bottleneck-links").replaceChildren(...links);
}

readTheme();
linkBottleneck();
at("core").append(...cores.map((_, number) => element("option", {value: number}, String(number))));
at("core-choice").hidden = cores.length < 2;
at("change-choice").hidden = report.against === null;
setCore(0);
source.showLongest();
listen();
listenToGraph();
restyle();

// For tests, and for the curious: where things are, in pixels of the window.
function onPage(canvas, {x, y, width, height}) {
  const box = canvas.getBoundingClientRect();
  return {x: box.left + x, y: box.top + y, width, height};
}
window.trnrt = {
  report, view, state,
  core,
  draw: drawNow,
  timeText, bytesText,
  barBefore: (span) => onPage(timeline.canvas, timeline.boxBefore(span)),
  bar: (span) => onPage(timeline.canvas, timeline.box(span)),
  tile: (memory, tile) => onPage(memories[memory].canvas, memories[memory].box(tile)),
};

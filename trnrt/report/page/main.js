// The page: what is shown, and what pointer, wheel, keys and buttons do to it.

const at = (id) => document.getElementById(id);
const cores = report.cores.map((raw) => new Core(raw));
const timeline = new Timeline(at("timeline"));
const state = {core: 0, mode: "step", hovered: OTHER, pinned: OTHER, alone: null, tile: null, whole: false, keys: []};
let memories = [];
let frame = 0;

const core = () => cores[state.core];
const selected = () => (state.hovered !== OTHER ? state.hovered : state.pinned);

// What decides a span's colour: its step, or its operation.
function keyOf(span) {
  const number = core().instruction(span);
  return state.mode === "step" ? core().instructions.step[number] : core().instructions.operation[number];
}

function redraw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    drawNow();
  });
}

function drawNow() {
  const colours = new Map(state.keys.map((key, place) => [key, place]));
  timeline.draw({
    selected: selected(),
    pinned: state.pinned !== OTHER && selected() === state.pinned,
    paint: (span) => (keyOf(span) === OTHER ? OTHER : state.mode === "step" ? keyOf(span) : colours.get(keyOf(span))),
    faded: (span) => state.alone !== null && keyOf(span) !== state.alone,
  });
  for (const memory of memories) memory.draw(state.tile?.memory === memory ? state.tile.tile : OTHER);
}

function showPanel() { showSpan(at("panel"), core(), selected(), goTo); }

function pin(span) {
  Object.assign(state, {pinned: span, hovered: OTHER});
  showPanel();
  redraw();
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
  Object.assign(state, {core: number, hovered: OTHER, pinned: OTHER, tile: null, alone: null});
  Object.assign(view, {from: 0, to: core().duration, whole: core().duration});
  timeline.setCore(core());
  buildMemories();
  buildLegend();
  showPanel();
  showTile(at("memory-panel"), null, OTHER);
  redraw();
}

function buildMemories() {
  memories = [];
  const parts = core().memories.filter((memory) => memory.byte.length > 0).flatMap((memory) => {
    const label = `${memory.name}: ${memory.byte.length} tiles over time; up and down arrow go from tile to tile`;
    const canvas = element("canvas", {tabindex: 0, role: "application", "aria-label": label});
    const picture = new Memory(canvas);
    picture.setMemory(memory);
    picture.setScale(state.whole);
    memories.push(picture);
    navigable(canvas, (x, y) => overTile(picture, x, y), () => {});
    canvas.addEventListener("keydown", (event) => onTileKey(event, picture));
    return [element("h3", {}, memory.name, element("small", {}, memorySummary(memory, picture.used))), canvas];
  });
  at("memories").replaceChildren(...parts, ...(parts.length ? [] : [element("p", {}, "No tile has an address.")]));
}

function overTile(picture, x, y) { showTileOf(picture, picture.hit(x, y)); }

function showTileOf(picture, tile) {
  state.tile = tile === OTHER ? null : {memory: picture, tile};
  showTile(at("memory-panel"), picture.memory, tile);
  redraw();
}

// Steps in their order, operations by the time they take; those that are used, and how often.
function buildLegend() {
  const times = new Map();
  for (let span = 0; span < core().issues; span++) {
    times.set(keyOf(span), (times.get(keyOf(span)) ?? 0) + core().end[span] - core().start[span]);
  }
  state.keys = [...times.keys()].sort((a, b) => (state.mode === "step" ? a - b : times.get(b) - times.get(a)));
  at("legend").replaceChildren(...state.keys.map((key, place) => legendItem(key, place)));
}

function legendItem(key, place) {
  const name = key === OTHER ? "no step" : state.mode === "step" ? report.steps[key].name : texts[key];
  const swatch = element("i", {class: "swatch"});
  swatch.style.background = colour(key === OTHER ? OTHER : state.mode === "step" ? key : place);
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
  state.hovered = timeline.hit(x, y);
  showPanel();
  redraw();
}

const NAVIGATION = {
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "_": () => zoom(1 / 0.6), "0": () => show(0, view.whole),
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
  else if (event.key === "Escape") pin(OTHER);
}

function firstInView() {
  for (const row of [...core().laneRows.values()].flat()) {
    const position = firstWhere(row, (span) => core().end[span] > view.from);
    if (position < row.length && core().start[row[position]] < view.to) return row[position];
  }
  return OTHER;
}

function onTileKey(event, picture) {
  const by = {ArrowUp: -1, ArrowDown: 1}[event.key];
  if (by === undefined || picture.count === 0) return;
  event.preventDefault();
  const now = state.tile?.memory === picture ? state.tile.tile : by > 0 ? -1 : picture.count;
  showTileOf(picture, (now + by + picture.count) % picture.count);
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

function restyle() {
  readTheme();
  for (const swatch of document.querySelectorAll("[data-swatch]")) {
    swatch.style.background = colour(Number(swatch.dataset.swatch));
  }
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
    for (const memory of memories) memory.setScale(state.whole);
    redraw();
  });
  at("core").addEventListener("change", (event) => setCore(Number(event.target.value)));
  for (const link of document.querySelectorAll("[data-step]")) {
    link.addEventListener("click", () => showStep(Number(link.dataset.step)));
  }
  navigable(at("timeline"), hover, (x, y) => pin(timeline.hit(x, y)));
  at("timeline").addEventListener("keydown", onBarKey);
  document.addEventListener("keydown", onKey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  new ResizeObserver(() => { drawRoofline(at("roofline")); redraw(); }).observe(document.body);
}

readTheme();
at("core").append(...cores.map((_, number) => element("option", {value: number}, String(number))));
at("core-choice").hidden = cores.length < 2;
setCore(0);
listen();
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
  bar: (span) => onPage(timeline.canvas, timeline.box(span)),
  tile: (memory, tile) => onPage(memories[memory].canvas, memories[memory].box(tile)),
};

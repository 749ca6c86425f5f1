// The fusion graph: a box a step, in layers from left to right that go on in the next row, as lines of a text do.

const BOX = {width: 176, line: 16, head: 24, foot: 24, across: 40, down: 14, rows: 34, pad: 12, names: 4};

function boxTitle({kind, name, nodes}) {
  return kind === "step" ? nodes.map(([, op]) => op).filter((op) => op).join(" + ") || name : name;
}

// The lines of text below a box's title.
function boxLines(box) {
  if (box.kind !== "step") return [box.kind, box.shape];
  const names = box.nodes.map(([name]) => name);
  return names.length <= BOX.names ? names : [...names.slice(0, BOX.names - 1), `and ${names.length - BOX.names + 1} more`];
}

function boxHeight(box) { return BOX.head + BOX.line * boxLines(box).length + (box.kind === "step" ? BOX.foot : 8); }

// The place of each box, and the size of all, for a width of the page.
function placeBoxes(boxes, width) {
  const layers = [];
  boxes.forEach((box, number) => (layers[box.layer] ??= []).push({...box, number, height: boxHeight(box)}));
  const room = width - 2 * BOX.pad + BOX.across;
  const columns = Math.max(1, Math.floor(room / (BOX.width + BOX.across)));
  const wide = Math.min(room / columns - BOX.across, BOX.width * 1.4);
  const places = [];
  let y = BOX.pad;
  for (let first = 0; first < layers.length; first += columns) {
    const row = layers.slice(first, first + columns).map((layer) => (layer ?? []).sort((a, b) => a.order - b.order));
    const heights = row.map((layer) => layer.reduce((sum, {height}) => sum + height + BOX.down, -BOX.down));
    const tall = Math.max(...heights);
    row.forEach((layer, column) => {
      let top = y + (tall - heights[column]) / 2;
      for (const {number, height} of layer) {
        places[number] = {x: BOX.pad + column * (wide + BOX.across), y: top, width: wide, height, row: first / columns, column};
        top += height + BOX.down;
      }
    });
    y += tall + BOX.rows;
  }
  return {places, width: 2 * BOX.pad + Math.min(columns, layers.length) * (wide + BOX.across) - BOX.across, height: y - BOX.rows + BOX.pad};
}

// From side to side between neighbours, under the boxes of a row, and from row to row.
function edgePath(from, to) {
  const middle = (place) => place.x + place.width / 2;
  if (from.row === to.row && to.column === from.column + 1) {
    const [x0, y0, x1, y1] = [from.x + from.width, from.y + from.height / 2, to.x, to.y + to.height / 2];
    return `M${x0},${y0} C${(x0 + x1) / 2},${y0} ${(x0 + x1) / 2},${y1} ${x1 - 5},${y1}`;
  }
  const [x0, x1] = [middle(from), middle(to)];
  const y0 = from.y + from.height;
  if (from.row === to.row) {
    const y1 = to.y + to.height;
    const low = Math.max(y0, y1) + BOX.rows * 0.8;
    return `M${x0},${y0} C${x0},${low} ${x1},${low} ${x1},${y1 + 5}`;
  }
  return `M${x0},${y0} C${x0},${y0 + BOX.rows} ${x1},${to.y - BOX.rows} ${x1},${to.y - 5}`;
}

class Graph {
  // `choose` gets the number of a box, or OTHER; `open` that of a box whose row is to be shown. `steps`: those of the
  // boxes, this run's or the other one's.
  constructor(place, data, steps, choose, open) {
    Object.assign(this, {place, data, steps, choose, open, selected: OTHER, current: 0});
    this.canvas = document.createElement("canvas").getContext("2d");
    place.addEventListener("wheel", (event) => { if (this.svg?.isConnected) this.onWheel(event); }, {passive: false});
  }

  // A box's step in its own run; undefined if it has none.
  stepOf(box) { return this.steps[box?.step ?? OTHER]; }

  // The number of the same step in this run; OTHER if there is none.
  stepHere(number) {
    const own = this.data.boxes[number]?.step ?? OTHER;
    return this.steps === report.steps ? own : this.steps[own]?.now ?? OTHER;
  }

  // `anew`: also if another graph was shown last.
  draw(anew = false) {
    const width = Math.max(this.place.clientWidth, BOX.width + 2 * BOX.pad);
    if (this.drawnWidth === width && !anew) return;
    this.drawnWidth = width;
    this.layout = placeBoxes(this.data.boxes, width);
    this.svg = svgElement("svg", {role: "group", "aria-label": "Fusion graph", viewBox: `0 0 ${this.layout.width} ${this.layout.height}`});
    const marker = svgElement("marker", {id: "arrow", viewBox: "0 0 6 6", refX: 1, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto"});
    marker.append(svgElement("path", {d: "M0,0 L6,3 L0,6 z"}));
    const defs = svgElement("defs");
    defs.append(marker);
    this.edges = this.data.edges.map(([from, to]) => svgElement("path", {
      class: "edge", d: edgePath(this.layout.places[from], this.layout.places[to]), "marker-end": "url(#arrow)",
    }));
    this.boxes = this.data.boxes.map((box, number) => this.box(box, number));
    this.svg.append(defs, ...this.edges, ...this.boxes);
    this.place.replaceChildren(this.svg);
    this.setZoom(1);
    this.listen();
    this.select(this.selected);
  }

  box(box, number) {
    const {x, y, width, height} = this.layout.places[number];
    const use = this.stepOf(box);
    const step = this.stepHere(number);
    const said = boxText(box, use, this.changeOf(number));
    const group = svgElement("g", {class: `box ${box.kind}`, transform: `translate(${x} ${y})`, role: "button", "data-box": number, tabindex: number === this.current ? 0 : -1, "aria-label": said, "aria-pressed": "false"});
    group.append(svgElement("title", {}, said), svgElement("rect", {class: "frame", width, height, rx: 6}));
    const line = (text, at, kind, font) => {
      this.canvas.font = `${font} ${theme.sans}`;
      group.append(svgElement("text", {x: 14, y: at, class: kind}, fitted(this.canvas, text, width - 22)));
    };
    line(boxTitle(box), 17, "name", "620 12px");
    boxLines(box).forEach((text, k) => line(text, BOX.head + 9 + k * BOX.line, "node", "11.5px"));
    if (box.kind === "step") {
      line(use ? [this.changeOf(number) ? timeText(use.time * 1e6) : costText(use), this.changeOf(number)].filter((text) => text).join(", ") : "no instruction of its own", height - 12, "cost", "11.5px");
      const strip = svgElement("rect", {class: "strip", width: 5, height: height - 12, x: 4, y: 6, rx: 2, "data-swatch": step});
      group.append(strip, svgElement("rect", {class: "share", x: 14, y: height - 6, height: 3, rx: 1, width: use ? Math.max(1, (width - 24) * use.time / longestTime) : 0}));
    }
    return group;
  }

  // The step's time in the other run; "" without one. "of": that of several steps together, which this one is a part of.
  changeOf(number) {
    const own = this.steps === report.steps;
    const change = (own ? report.against?.changes : this.steps)?.[this.data.boxes[number].step];
    if (change === undefined) return "";
    if (change.other === null) return own ? "new" : "gone";
    return `${change.shared ? "of " : ""}${timeText(change.other * 1e6)} ${own ? "before" : "now"}`;
  }

  // Pixels of the page for one of the picture; the place scrolls.
  setZoom(scale) {
    this.scale = Math.min(Math.max(scale, 0.1), 4);
    this.svg.setAttribute("width", this.layout.width * this.scale);
    this.svg.setAttribute("height", this.layout.height * this.scale);
  }

  // Zoom so that a point of the place, by default its middle, stays where it is.
  zoom(factor, x = this.place.clientWidth / 2, y = this.place.clientHeight / 2) {
    const {place, scale} = this;
    this.setZoom(scale * factor);
    const by = this.scale / scale;
    place.scrollLeft = (place.scrollLeft + x) * by - x;
    place.scrollTop = (place.scrollTop + y) * by - y;
  }

  // All of it.
  fit() { this.setZoom(Math.min(1, this.place.clientWidth / this.layout.width, 560 / this.layout.height)); }

  reveal(number) {
    const {place, scale} = this;
    const {x, y, width, height} = this.layout.places[number];
    const into = (now, first, length, room) => (first < now ? first : Math.max(now, first + length - room));
    place.scrollLeft = into(place.scrollLeft, x * scale - 8, width * scale + 16, place.clientWidth);
    place.scrollTop = into(place.scrollTop, y * scale - 8, height * scale + 16, place.clientHeight);
  }

  select(number) {
    this.selected = number;
    this.boxes.forEach((box, k) => box.setAttribute("aria-pressed", String(k === number)));
    this.data.edges.forEach(([from, to], k) => this.edges[k].classList.toggle("near", from === number || to === number));
  }

  focus(number) {
    this.boxes[this.current].setAttribute("tabindex", -1);
    this.current = number;
    this.boxes[number].setAttribute("tabindex", 0);
    this.boxes[number].focus({preventScroll: true});
    this.reveal(number);
  }

  listen() {
    const {svg, place} = this;
    let from = null;
    svg.addEventListener("pointerdown", (event) => { from = {x: event.clientX, y: event.clientY, moved: 0}; });
    svg.addEventListener("pointermove", (event) => {
      if (from === null || event.buttons === 0 || event.pointerType === "touch") return;
      const [x, y] = [from.x - event.clientX, from.y - event.clientY];
      from = {x: event.clientX, y: event.clientY, moved: from.moved + Math.abs(x) + Math.abs(y)};
      place.scrollBy(x, y);
    });
    const boxOf = (event) => event.target.closest("[data-box]");
    svg.addEventListener("click", (event) => {
      if (from !== null && from.moved > 6) return;
      this.choose(boxOf(event) === null ? OTHER : Number(boxOf(event).dataset.box));
    });
    svg.addEventListener("dblclick", (event) => { if (boxOf(event) !== null) this.open(Number(boxOf(event).dataset.box)); });
    svg.addEventListener("keydown", (event) => this.onKey(event));
    svg.addEventListener("focusin", (event) => { if (boxOf(event) !== null) this.current = Number(boxOf(event).dataset.box); });
  }

  onWheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    const box = this.place.getBoundingClientRect();
    this.zoom(Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) / 180), event.clientX - box.left, event.clientY - box.top);
    event.preventDefault();
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = {ArrowRight: () => this.beside(1), ArrowLeft: () => this.beside(-1), ArrowDown: () => this.near(1), ArrowUp: () => this.near(-1), Home: () => 0, End: () => this.boxes.length - 1};
    const acts = {" ": () => this.choose(this.current), Enter: () => this.open(this.current), Escape: () => this.choose(OTHER), "+": () => this.zoom(1 / 0.7), "-": () => this.zoom(0.7), "0": () => this.fit()};
    if (moves[event.key] !== undefined) {
      const target = moves[event.key]();
      this.focus(target);
      this.choose(target);
    } else if (acts[event.key] !== undefined) acts[event.key]();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // Along an edge: a box that the current one feeds, or reads; without one the next of the plan.
  beside(by) {
    const found = this.data.edges.filter((edge) => edge[by > 0 ? 0 : 1] === this.current).map((edge) => edge[by > 0 ? 1 : 0]);
    const target = found.length ? Math[by > 0 ? "min" : "max"](...found) : this.current + by;
    return Math.min(Math.max(target, 0), this.boxes.length - 1);
  }

  // The box above or below in the same layer; at its end the nearest of the next row.
  near(by) {
    const {places} = this.layout;
    const own = places[this.current];
    const score = (place) => Math.abs(place.x - own.x) * 4 + Math.abs(place.y - own.y);
    const found = places.map((place, number) => ({place, number})).filter(({place}) => (place.y - own.y) * by > 1);
    return found.length ? found.reduce((best, one) => (score(one.place) < score(best.place) ? one : best)).number : this.current;
  }
}

function shareOf(share) { return `${(100 * share).toFixed(1)} %`; }
function costText(use) { return use.share === undefined ? timeText(use.time * 1e6) : `${timeText(use.time * 1e6)}, ${shareOf(use.share)}`; }
const longestTime = [...report.steps, ...(report.against?.steps ?? [])].reduce((most, step) => Math.max(most, step.time), 1e-9);

function boxText(box, use, change) {
  if (box.kind !== "step") return `${box.kind} ${box.name}, ${box.shape}`;
  const nodes = box.nodes.map(([name, op]) => `${op} ${name}`.trim()).join(", ");
  const cost = use === undefined ? "no instruction of its own" : `${costText(use)}${use.bound ? ` of the kernel, bound by ${use.bound}` : ""}`;
  return [`step ${box.name}: ${nodes}; ${cost}`, change].filter((text) => text).join("; ");
}

// What is known about a box; without one, how the nodes were grouped.
function showBox(panel, graph, number, {row, time, choose}) {
  const box = graph.data.boxes[number];
  if (box === undefined) return showGraph(panel, graph, choose);
  const use = graph.stepOf(box);
  const here = graph.stepHere(number);
  const list = element("dl");
  if (box.kind === "step") {
    field(list, "Kernel", "kernel", box.kernel);
    field(list, "Nodes", "nodes", ...box.nodes.map(([name, op]) => element("div", {}, `${op} ${name}`.trim())));
    if (use) {
      field(list, "Time", "time", use.share === undefined ? timeText(use.time * 1e6) : `${costText(use)} of the kernel`);
      if (graph.changeOf(number)) field(list, "Change", "change", graph.changeOf(number));
      if (use.bound) field(list, "Bound", "bound", use.bound);
    }
    field(list, "Why", "reason", box.reason);
  }
  field(list, "Result", "shape", box.kind === "step" ? `${box.shape}, in ${box.place}` : box.shape);
  const link = (text, action) => element("div", {}, element("button", {type: "button", class: "link", onclick: () => action(here)}, text));
  if (here !== OTHER) field(list, "Show", "show", link("its row", row), link("its time", time));
  panel.replaceChildren(element("h3", {"data-field": "box"}, boxTitle(box)), element("p", {class: "under"}, `${box.kind} ${box.name}`), list);
}

function showGraph(panel, graph, choose) {
  const boxes = graph.data.boxes.map((box, number) => ({box, number, use: graph.stepOf(box)}));
  const steps = boxes.filter(({use}) => use !== undefined).sort((a, b) => b.use.time - a.use.time);
  const list = element("ol", {class: "alive"}, ...steps.slice(0, 5).map(({box, number, use}) => {
    const swatch = element("i", {class: "swatch", "data-swatch": graph.stepHere(number)});
    const go = element("button", {type: "button", class: "link", onclick: () => choose(number)}, box.name);
    return element("li", {}, swatch, element("span", {}, go, element("small", {}, boxTitle(box))), element("b", {}, timeText(use.time * 1e6)));
  }));
  const parts = [element("h3", {}, "The longest steps"), list];
  const {outside} = graph.data;
  if (outside.length) {
    const names = outside.slice(0, 12).map(([name, op, why]) => element("li", {}, `${op} ${name}: ${why}`));
    if (outside.length > 12) names.push(element("li", {}, `and ${(outside.length - 12).toLocaleString("en-US")} more`));
    parts.push(element("h3", {class: "later"}, "In no step"), element("ul", {class: "plain"}, ...names));
  }
  panel.replaceChildren(...parts);
  paintSwatches(panel);
}

// What is known about the bar or the tile under the pointer, or, with none, what is worth a look. Each value says in `data-field` what it is.

function field(list, title, name, ...content) {
  const present = content.filter((part) => part !== "" && part !== null);
  if (present.length === 0) return;
  list.append(element("dt", {}, title), element("dd", {"data-field": name}, ...present));
}

function showSpan(panel, core, span, select) {
  const list = element("dl");
  timeFields(list, core.start[span], core.end[span]);
  waitField(list, core, span, select);
  stepFields(list, core, span);
  transferField(list, core, span);
  sourceFields(list, core, span);
  const title = element("h3", {"data-field": "operation"}, (core.isTrigger(span) ? "trigger " : "") + core.operation(span));
  const where = `${core.other ? `before, in ${report.against.file}: ` : ""}${core.laneName(span)}, issue ${core.issue(span).toLocaleString("en-US")}`;
  panel.replaceChildren(title, element("p", {class: "under", "data-field": "lane"}, where), list);
  Object.assign(panel.dataset, {
    span, issue: core.issue(span), start: core.start[span], end: core.end[span], duration: core.end[span] - core.start[span],
  });
}

const SHOWN_LINES = 5;

// With nothing chosen: where the critical path goes, and the longest instructions, as links to them.
function showOverview(panel, core, {select, choose}) {
  delete panel.dataset.span;
  const item = (text, under, action, time) => element("li", {}, element("i"),
    element("span", {}, element("button", {type: "button", class: "link", onclick: action}, text), element("small", {}, under)), element("b", {}, time));
  const lines = report.lines.filter(({path}) => path > 0).sort((a, b) => b.path - a.path).slice(0, SHOWN_LINES);
  const byLine = lines.map((use) => item(placeText(use), codeOf(use), () => choose({file: use.file, line: use.line}), `${timeText(use.path)}, ${shareText(use.share)}`));
  const spans = Array.from({length: core.issues}, (_, span) => span).sort((a, b) => core.end[b] - core.start[b] - core.end[a] + core.start[a]);
  const bySpan = spans.slice(0, SHOWN_LINES).map((span) => item(core.label(span), `${core.laneName(span)}, ${core.stepName(span)}`, () => select(span), timeText(core.end[span] - core.start[span])));
  const column = (title, items) => element("div", {}, element("h3", {}, title), element("ol", {class: "alive"}, ...items));
  panel.replaceChildren(element("div", {class: "overview", "data-field": "overview"}, column("Longest on the critical path", byLine), column("Longest instructions", bySpan)));
}

function timeFields(list, start, end) {
  field(list, "Duration", "duration", timeText(end - start));
  field(list, "Start", "start", momentText(start));
  field(list, "End", "end", momentText(end));
}

function waitField(list, core, span, select) {
  const producer = core.producer(span);
  const idle = core.idleBefore(span);
  if (producer !== OTHER) {
    const name = `${core.label(producer)} on ${core.laneName(producer)}`;
    const after = core.start[span] - core.end[producer];
    const distance = after === 0 ? "at" : `${timeText(Math.abs(after))} ${after > 0 ? "after" : "before"}`;
    const when = `started ${distance} its end`;
    const go = element("button", {type: "button", class: "link", onclick: () => select(producer)}, name);
    field(list, "Waited for", "waited-for", element("div", {}, go), element("div", {}, when));
  } else if (!core.isTrigger(span)) {
    field(list, "Waited for", "waited-for", "nothing");
  }
  field(list, "Lane idle", "idle", idle > 0 ? `${timeText(idle)} before` : "");
}

function stepFields(list, core, span) {
  const step = core.step(span);
  field(list, "Name", "name", core.name(span));
  field(list, "Step", "step", core.stepName(span));
  if (step !== OTHER) field(list, "Nodes", "nodes", report.steps[step].nodes.join(", "));
}

function transferField(list, core, span) {
  const transfer = core.transfer(span);
  if (transfer === undefined) return;
  const {payload, hbm, packets, engines} = core.transfers;
  const trigger = core.issues + transfer;
  const length = core.end[core.issue(span)] - core.start[core.issue(span)];
  const rate = length > 0 ? `${trimmed(payload[transfer] * 1000 / length, 1)} GB/s` : "";
  const parts = [
    `${bytesText(payload[transfer])} ${rate ? `at ${rate}` : ""}`,
    `${bytesText(hbm[transfer])} of HBM traffic`,
    `${packets[transfer].toLocaleString("en-US")} packets on ${engines[transfer]} DMA engines`,
    `triggered by ${core.laneName(trigger)}, ${momentText(core.start[trigger])} to ${momentText(core.end[trigger])}`,
  ];
  field(list, "DMA", "dma", ...parts.map((part) => element("div", {}, part)));
}

function sourceFields(list, core, span) {
  const {operands, source} = core.instructions;
  const number = core.instruction(span);
  const lines = operands[number].map((text) => element("div", {class: "mono"}, texts[text]));
  field(list, "Operands", "operands", ...lines);
  const place = ownPlace(core, span);
  const code = place === null ? "" : codeOf(place);
  field(list, "Source", "source", element("div", {class: "mono"}, texts[source[number]]), code ? element("code", {}, code) : "");
}

function showTile(panel, memory, tile) {
  const {byte, bytes, partition, start, end} = memory;
  const list = element("dl");
  field(list, "Bytes", "bytes", `${bytes[tile].toLocaleString("en-US")} a partition`);
  const [first, last] = [byte[tile], byte[tile] + bytes[tile]];
  field(list, "Address", "address", `${first.toLocaleString("en-US")} to ${last.toLocaleString("en-US")}`);
  field(list, "Partition", "partition", partition[tile] ? `from ${partition[tile]}` : "");
  field(list, "Alive", "alive", `${momentText(start[tile])} to ${momentText(end[tile])}`);
  field(list, "Duration", "duration", timeText(end[tile] - start[tile]));
  field(list, "Allocated", "source", element("span", {class: "mono"}, texts[memory.source[tile]]));
  const title = element("h3", {"data-field": "tile"}, fileless(texts[memory.label[tile]]));
  const what = `${texts[memory.shape[tile]]}, ${memory.name}`;
  panel.replaceChildren(title, element("p", {class: "under", "data-field": "shape"}, what), list);
  Object.assign(panel.dataset, {tile, memory: memory.name, start: start[tile], end: end[tile]});
  Object.assign(panel.dataset, {bytes: bytes[tile], byte: byte[tile]});
}

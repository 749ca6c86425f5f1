// The timeline on its canvas: which time is shown, where each bar is, and how it is drawn.

const AXIS = 26;
const LANE_GAP = 8;

// What all pictures over time show of it, and the time under the pointer (null for none), picoseconds. 0 is the first
// instruction; the launch is before it, from `start` on.
const view = {from: 0, to: 1, start: 0, whole: 1, cursor: null};

function gutter(width) { return width < 560 ? 90 : 112; }
function xOf(time, width) { return gutter(width) + (time - view.from) / (view.to - view.from) * (width - gutter(width)); }
function timeAt(x, width) { return view.from + (x - gutter(width)) / (width - gutter(width)) * (view.to - view.from); }

function show(from, to) {
  const length = Math.min(Math.max(to - from, Math.min(2000, view.whole)), view.whole);
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(view.start, to - from === length ? from : middle - length / 2), view.start + view.whole - length);
  view.to = view.from + length;
}

function showAll() { show(view.start, view.start + view.whole); }

function zoom(factor, time = (view.from + view.to) / 2) {
  show(time - (time - view.from) * factor, time + (view.to - time) * factor);
}

function pan(share) {
  const by = (view.to - view.from) * share;
  show(view.from + by, view.to + by);
}

// The lanes of both runs with y of their rows, those of the run before under those of this one. Rows get thinner where
// many spans run at the same time.
function lanePositions(core, before) {
  let y = AXIS + 4;
  const names = [...core.lanes, ...(before?.lanes ?? []).filter((name) => !core.lanes.includes(name))];
  const places = [];
  for (const name of names) {
    const rows = core.laneRows.get(core.lanes.indexOf(name)) ?? [];
    const under = before?.laneRows.get(before.lanes.indexOf(name)) ?? [];
    if (rows.length + under.length === 0) continue;
    const row = Math.max(4, Math.min(22, Math.floor(88 / Math.max(1, rows.length))));
    const thin = Math.max(4, Math.min(11, Math.floor(44 / Math.max(1, under.length))));
    const height = rows.length ? row * rows.length : 16;  // of a lane that only the other run uses, room for its name
    places.push({name, rows, y, row, height, under: {rows: under, y: y + height, row: thin, height: thin * under.length}});
    y += height + thin * under.length + LANE_GAP;
  }
  return {places, height: y + (before ? 12 : 0)};
}

class Timeline {
  constructor(canvas) { this.canvas = canvas; }

  // `before`: the core of the other run, if there is one.
  setCore(core, before) {
    Object.assign(this, {core, before}, lanePositions(core, before));
    this.placeOf = new Map(this.places.map((place) => [core.lanes.indexOf(place.name), place]));
  }

  // Where a span's bar is, in pixels of the canvas.
  box(span) {
    return this.boxOf(this.core, this.placeOf.get(this.core.lane[span]), span);
  }

  // Where the bar of a span of the other run is.
  boxBefore(span) {
    const name = this.before.laneName(span);
    return this.boxOf(this.before, this.places.find((place) => place.name === name).under, span);
  }

  boxOf(core, place, span) {
    const width = this.canvas.clientWidth;
    const [left, right] = [xOf(core.start[span], width), xOf(core.end[span], width)];
    const y = place.y + core.row[span] * place.row;
    return {x: left, y, width: Math.max(1, right - left), height: barHeight(place.row)};
  }

  // The span at a point, or within three pixels of it in its row.
  hit(x, y) {
    return this.hitIn(this.core, this.places, (span) => this.box(span), x, y);
  }

  // The same of the other run.
  hitBefore(x, y) {
    if (!this.before) return OTHER;
    return this.hitIn(this.before, this.places.map((place) => place.under), (span) => this.boxBefore(span), x, y);
  }

  hitIn(core, places, boxOf, x, y) {
    const width = this.canvas.clientWidth;
    const place = places.find((one) => y >= one.y && y < one.y + one.height);
    if (place === undefined || x < gutter(width)) return OTHER;
    const row = place.rows[Math.floor((y - place.y) / place.row)];
    if (row === undefined) return OTHER;
    const span = core.nearest(row, timeAt(x, width));
    const box = boxOf(span);
    return x >= box.x - 3 && x <= box.x + box.width + 3 ? span : OTHER;
  }

  // `state`: the selected span and whether it is pinned; `paint`, span -> colour number; `faded`, whether it is pale;
  // `before`: the last two for spans of the other run.
  draw(state) {
    const [context, width] = prepared(this.canvas, this.height);
    drawTicks(context, width, AXIS, this.height);
    this.places.forEach((place) => drawBand(context, width, place));
    drawLaunch(context, width, this.core.launch, AXIS, this.height);
    for (const place of this.places) {
      this.drawLane(context, width, this.core, place, state);
      if (this.before) this.drawLane(context, width, this.before, place.under, state.before);
    }
    if (this.before) this.drawEnds(context, width);
    if (state.selected !== OTHER) this.drawSelection(context, width, state);
    drawCursor(context, width, AXIS - 4, this.height);
    // Labels last: bars that begin before the window must not cover them.
    context.fillStyle = theme.card;
    context.fillRect(0, 0, gutter(width), this.height);
    context.fillStyle = theme.muted;
    const room = gutter(width) - 10;
    this.drawAxis(context, width);
    context.textAlign = "right";
    context.font = `12px ${theme.sans}`;
    for (const {name, y, height, under} of this.places) {
      context.font = `12px ${theme.sans}`;
      context.fillText(fitted(context, name, room), room, y + height / 2);
      context.font = `10.5px ${theme.sans}`;
      if (under.height) context.fillText("before", room, under.y + under.height / 2);
    }
  }

  // Where each of two runs ends.
  drawEnds(context, width) {
    context.font = `11px ${theme.sans}`;
    context.textAlign = "right";
    for (const [core, name] of [[this.core, "end"], [this.before, "end before"]]) {
      const x = Math.round(xOf(core.duration, width)) - 0.5;
      if (x < gutter(width) || x > width) continue;
      context.strokeStyle = context.fillStyle = theme.muted;
      context.setLineDash([3, 3]);
      context.beginPath();
      context.moveTo(x, AXIS - 4);
      context.lineTo(x, this.height);
      context.stroke();
      context.setLineDash([]);
      context.fillText(name, x - 4, this.height - 6);
    }
  }

  drawAxis(context, width) {
    context.font = `11.5px ${theme.sans}`;
    context.textAlign = "center";
    context.fillStyle = theme.muted;
    for (const [time, x, step] of ticks(width)) {
      const text = tickText(time, step);
      context.fillText(text, Math.min(x, width - context.measureText(text).width / 2), AXIS / 2);
    }
  }

  drawLane(context, width, core, place, state) {
    place.rows.forEach((row, number) => this.drawRow(context, width, core, place, row, number, state));
  }

  // One row: a bar a span; spans that share a pixel are one bar, found by bisection, so that a row costs its pixels.
  drawRow(context, width, core, place, row, number, state) {
    const y = place.y + number * place.row;
    const left = gutter(width);
    const pixel = (view.to - view.from) / (width - left);
    context.font = `11px ${theme.sans}`;
    context.textAlign = "left";
    let position = firstWhere(row, (span) => core.end[span] > view.from);
    while (position < row.length) {
      const span = row[position];
      const start = core.start[span];
      if (start >= view.to) break;
      const x = Math.max(left, xOf(start, width));
      const right = Math.min(width, xOf(core.end[span], width));
      this.drawBar(context, core, span, x, y, Math.max(1, right - x), barHeight(place.row), state);
      const after = right - x < 1 ? Math.max(core.end[span], start + pixel) : core.end[span];
      position++;
      if (right - x < 1) position = Math.max(position, firstWhere(row, (other) => core.end[other] > after));
    }
  }

  drawBar(context, core, span, x, y, width, height, state) {
    const trigger = core.isTrigger(span);
    context.globalAlpha = (state.faded(span) ? 0.16 : trigger ? 0.45 : 1) * (core.other ? 0.55 : 1);
    context.fillStyle = colour(state.paint(span));
    context.fillRect(x, y, width > 2.5 ? width - 0.75 : width, height);
    if (width > 34 && height >= 13) {
      context.fillStyle = trigger ? theme.text : textOn(state.paint(span));
      context.fillText(fitted(context, core.label(span), width - 10), x + 5, y + height / 2 + 0.5);
    }
    context.globalAlpha = 1;
  }

  // The selected bar, what it waited for, and (pinned) the chain of waits that led to it.
  drawSelection(context, width, state) {
    context.save();
    context.beginPath();
    context.rect(gutter(width), 0, width - gutter(width), this.height);
    context.clip();
    let span = state.selected;
    this.outline(context, span, 2);
    for (let hop = 0; hop < (state.pinned ? 200 : 1); hop++) {
      const producer = this.core.producer(span);
      if (producer === OTHER) break;
      context.globalAlpha = hop ? 0.45 : 1;
      // Of the chain only what goes from lane to lane: a lane's own order is plain to see.
      if (!hop || this.core.lane[producer] !== this.core.lane[span]) this.arrow(context, producer, span);
      if (!hop) this.outline(context, producer, 1.25);
      span = producer;
    }
    context.restore();
  }

  outline(context, span, thickness) {
    const box = this.box(span);
    context.strokeStyle = theme.select;
    context.lineWidth = thickness;
    context.strokeRect(box.x - 0.5, box.y - 0.5, box.width + 0.5, box.height + 1);
  }

  arrow(context, from, to) {
    const [source, sink] = [this.box(from), this.box(to)];
    const [x0, y0] = [source.x + source.width, source.y + source.height / 2];
    const [x1, y1] = [sink.x, sink.y + sink.height / 2];
    const bend = Math.max(12, Math.min(60, Math.abs(x1 - x0) / 2));
    context.strokeStyle = context.fillStyle = theme.select;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x0, y0);
    context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 5, y1);
    context.stroke();
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x1 - 7, y1 - 3.5);
    context.lineTo(x1 - 7, y1 + 3.5);
    context.fill();
  }
}

// The ground of a lane.
function drawBand(context, width, place) {
  context.fillStyle = theme.faint;
  context.globalAlpha = 0.55;
  context.fillRect(gutter(width), place.y, width - gutter(width), Math.max(0, place.height - place.row + barHeight(place.row)));
  context.globalAlpha = 1;
}

// The program's fixed start and end, as a hatched block before the first instruction.
function drawLaunch(context, width, launch, top, bottom) {
  const [left, right] = [Math.max(gutter(width), xOf(-launch, width)), Math.min(width, xOf(0, width))];
  if (launch === 0 || right - left < 1) return;
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  context.fillStyle = theme.faint;
  context.fillRect(left, top, right - left, bottom - top);
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.beginPath();
  for (let x = left - (bottom - top); x < right; x += 9) {
    context.moveTo(x, bottom);
    context.lineTo(x + bottom - top, top);
  }
  context.stroke();
  context.restore();
  const text = `launch ${timeText(launch)}`;
  context.font = `12px ${theme.sans}`;
  if (context.measureText(text).width > right - left - 12) return;
  context.textAlign = "center";
  const [middle, half] = [(left + right) / 2, context.measureText(text).width / 2 + 6];
  context.fillStyle = theme.card;
  context.fillRect(middle - half, top + 6, 2 * half, 20);
  context.fillStyle = theme.text;
  context.fillText(text, middle, top + 16.5);
}

// Bars leave a little of their row free.
function barHeight(row) { return row - (row > 6 ? 2 : 1); }

// (time, x, distance to the next) of each tick in the window.
function ticks(width) {
  const room = (width - gutter(width)) / 70;
  const step = roundStep((view.to - view.from) / Math.max(3, room));
  const found = [];
  for (let k = Math.ceil(view.from / step); k * step <= view.to; k++) found.push([k * step, xOf(k * step, width), step]);
  return found;
}

function drawTicks(context, width, top, bottom) {
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.beginPath();
  for (const [, x] of ticks(width)) {
    context.moveTo(Math.round(x) + 0.5, top);
    context.lineTo(Math.round(x) + 0.5, bottom);
  }
  context.stroke();
}

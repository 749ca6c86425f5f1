// The timeline on its canvas: which time is shown, where each bar is, and how it is drawn.

const AXIS = 26;
const LANE_GAP = 8;

// What all pictures over time show of it, picoseconds.
const view = {from: 0, to: 1, whole: 1};

function gutter(width) { return width < 560 ? 90 : 112; }
function xOf(time, width) { return gutter(width) + (time - view.from) / (view.to - view.from) * (width - gutter(width)); }
function timeAt(x, width) { return view.from + (x - gutter(width)) / (width - gutter(width)) * (view.to - view.from); }

function show(from, to) {
  const length = Math.min(Math.max(to - from, Math.min(2000, view.whole)), view.whole);
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(0, to - from === length ? from : middle - length / 2), view.whole - length);
  view.to = view.from + length;
}

function zoom(factor, time = (view.from + view.to) / 2) {
  show(time - (time - view.from) * factor, time + (view.to - time) * factor);
}

function pan(share) {
  const by = (view.to - view.from) * share;
  show(view.from + by, view.to + by);
}

// Lane positions: y of each row. Rows get thinner where many spans run at the same time.
function lanePositions(core) {
  let y = AXIS + 4;
  const places = [];
  for (const [lane, rows] of core.laneRows) {
    const height = Math.max(4, Math.min(22, Math.floor(88 / rows.length)));
    places.push({lane, rows, y, row: height, height: height * rows.length});
    y += height * rows.length + LANE_GAP;
  }
  return {places, height: y};
}

class Timeline {
  constructor(canvas) { this.canvas = canvas; }

  setCore(core) {
    this.core = core;
    Object.assign(this, lanePositions(core));
    this.placeOf = new Map(this.places.map((place) => [place.lane, place]));
  }

  // Where a span's bar is, in pixels of the canvas.
  box(span) {
    const place = this.placeOf.get(this.core.lane[span]);
    const width = this.canvas.clientWidth;
    const [left, right] = [xOf(this.core.start[span], width), xOf(this.core.end[span], width)];
    const y = place.y + this.core.row[span] * place.row;
    return {x: left, y, width: Math.max(1, right - left), height: place.row - (place.row > 6 ? 2 : 1)};
  }

  // The span at a point, or within three pixels of it in its row.
  hit(x, y) {
    const width = this.canvas.clientWidth;
    const place = this.places.find((one) => y >= one.y && y < one.y + one.height);
    if (place === undefined || x < gutter(width)) return OTHER;
    const row = place.rows[Math.floor((y - place.y) / place.row)];
    const span = this.core.nearest(row, timeAt(x, width));
    const box = this.box(span);
    return x >= box.x - 3 && x <= box.x + box.width + 3 ? span : OTHER;
  }

  // `state`: the selected span and whether it is pinned; `paint`, span -> colour number; `faded`, whether it is pale.
  draw(state) {
    const [context, width] = prepared(this.canvas, this.height);
    drawTicks(context, width, AXIS, this.height);
    for (const place of this.places) this.drawLane(context, width, place, state);
    if (state.selected !== OTHER) this.drawSelection(context, width, state);
    // Labels last: bars that begin before the window must not cover them.
    context.fillStyle = theme.card;
    context.fillRect(0, 0, gutter(width), this.height);
    context.fillStyle = theme.muted;
    const room = gutter(width) - 10;
    this.drawAxis(context, width);
    context.textAlign = "right";
    context.font = `12px ${theme.sans}`;
    for (const place of this.places) {
      context.fillText(fitted(context, this.core.lanes[place.lane], room), room, place.y + place.height / 2);
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

  drawLane(context, width, place, state) {
    context.fillStyle = theme.faint;
    context.globalAlpha = 0.55;
    context.fillRect(gutter(width), place.y, width - gutter(width), place.height - (place.row > 6 ? 2 : 1));
    context.globalAlpha = 1;
    place.rows.forEach((row, number) => this.drawRow(context, width, place, row, number, state));
  }

  // One row: a bar a span; spans that share a pixel are one bar, found by bisection, so that a row costs its pixels.
  drawRow(context, width, place, row, number, state) {
    const core = this.core;
    const y = place.y + number * place.row;
    const height = place.row - (place.row > 6 ? 2 : 1);
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
      this.drawBar(context, span, x, y, Math.max(1, right - x), height, state);
      const after = right - x < 1 ? Math.max(core.end[span], start + pixel) : core.end[span];
      position++;
      if (right - x < 1) position = Math.max(position, firstWhere(row, (other) => core.end[other] > after));
    }
  }

  drawBar(context, span, x, y, width, height, state) {
    const trigger = this.core.isTrigger(span);
    context.globalAlpha = state.faded(span) ? 0.16 : trigger ? 0.45 : 1;
    context.fillStyle = colour(state.paint(span));
    context.fillRect(x, y, width > 2.5 ? width - 0.75 : width, height);
    if (width > 34 && height >= 13) {
      context.fillStyle = trigger ? theme.text : textOn(state.paint(span));
      context.fillText(fitted(context, this.core.label(span), width - 10), x + 5, y + height / 2 + 0.5);
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

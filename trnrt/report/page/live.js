// The bytes that are alive at each time, stacked by tile: in one band, or (PSUM) in a band a bank.

const OWN_COLOURS = 11;

// Labels by their bytes over time, the largest first: these have a colour each, and share that of the others after that.
function labelRanks(memory) {
  const amounts = new Map();
  memory.label.forEach((label, tile) => {
    amounts.set(label, (amounts.get(label) ?? 0) + memory.bytes[tile] * Math.max(1, memory.length[tile]));
  });
  const order = [...amounts.keys()].sort((a, b) => amounts.get(b) - amounts.get(a));
  return new Map(order.map((label, rank) => [label, rank < OWN_COLOURS ? rank : OTHER]));
}

// The bytes of a tile in each band: a tile larger than a bank is in several.
function bandPieces(memory, tile) {
  const [first, end] = [memory.byte[tile], memory.byte[tile] + memory.bytes[tile]];
  if (!memory.bank) return [{band: 0, bytes: end - first}];
  const pieces = [];
  for (let band = Math.floor(first / memory.bank); band * memory.bank < end; band++) {
    pieces.push({band, bytes: Math.min(end, (band + 1) * memory.bank) - Math.max(first, band * memory.bank)});
  }
  return pieces;
}

class Live {
  constructor(memory) {
    this.memory = memory;
    this.ranks = labelRanks(memory);
    const needed = memory.byte.reduce((most, byte, tile) => Math.max(most, byte + memory.bytes[tile]), memory.capacity);
    this.bands = memory.bank ? Math.ceil(needed / memory.bank) : 1;
    this.changes = this.sortedChanges();
    this.measure();
  }

  // {time, band, rank, by} at every change, ends before starts. Tiles on the same bytes of other partitions count once.
  sortedChanges() {
    const {start, end, byte, bytes, label} = this.memory;
    const edges = byte.flatMap((_, tile) => [{time: start[tile], tile, by: 1}, {time: end[tile], tile, by: -1}]);
    edges.sort((a, b) => a.time - b.time || a.by - b.by);
    const users = new Map();
    const changes = [];
    for (const {time, tile, by} of edges) {
      const place = `${byte[tile]}:${bytes[tile]}`;
      const {count, rank} = users.get(place) ?? {count: 0, rank: OTHER};
      const held = count > 0 ? rank : this.ranks.get(label[tile]);
      users.set(place, {count: count + by, rank: held});
      if (count + by > 0 && count > 0) continue;
      for (const piece of bandPieces(this.memory, tile)) changes.push({time, band: piece.band, rank: held, by: by * piece.bytes});
    }
    return changes;
  }

  // The most bytes at once, and when.
  measure() {
    let now = 0;
    Object.assign(this, {most: 0, when: 0});
    this.changes.forEach(({time, by}, k) => {
      now += by;
      if (now > this.most && this.changes[k + 1]?.time !== time) Object.assign(this, {most: now, when: time});
    });
    this.times = [...new Set(this.changes.map(({time}) => time))];
  }

  setScale(whole) {
    const {capacity, bank} = this.memory;
    const used = Math.max(this.most, 1);
    this.limit = bank || (whole || used > capacity / 3 ? Math.max(capacity, used) * 1.06 : Math.max(used * 1.15, 64));
    this.band = bank ? 26 : 216;
    this.height = this.bands * this.band + 10;
  }

  // [band's bottom, pixels a byte]
  scale(band) {
    const gap = this.memory.bank ? 3 : 0;
    return [4 + (band + 1) * this.band, (this.band - gap) / this.limit];
  }

  alive(time) {
    const {start, end, bytes} = this.memory;
    const found = [];
    for (let tile = 0; tile < start.length; tile++) if (start[tile] <= time && time < end[tile]) found.push(tile);
    return found.sort((a, b) => bytes[b] - bytes[a] || a - b);
  }

  totalAt(time) {
    let total = 0;
    for (const change of this.changes) {
      if (change.time > time) break;
      total += change.by;
    }
    return total;
  }

  draw(canvas) {
    const [context, width] = prepared(canvas, this.height);
    const left = gutter(width);
    for (let band = 0; band < this.bands; band++) this.drawBand(context, left, width, band);
    drawTicks(context, width, 4, this.height - 6);
    for (const {x, columns, band, stack} of this.pieces(width)) this.drawStack(context, x, columns, band, stack);
    this.drawScale(context, left, width);
    drawCursor(context, width, 0, this.height - 4);
  }

  drawBand(context, left, width, band) {
    const [bottom, size] = this.scale(band);
    context.fillStyle = theme.faint;
    context.globalAlpha = 0.55;
    context.fillRect(left, bottom - this.limit * size, width - left, this.limit * size);
    context.globalAlpha = 1;
  }

  // Runs of pixel columns with one stack each: of the times within a pixel the one with most bytes.
  *pieces(width) {
    const left = gutter(width);
    for (let band = 0; band < this.bands; band++) {
      const now = new Map();
      let [total, from, best, bestTotal] = [0, left, null, -1];
      for (const {time, rank, by} of [...this.changes.filter((change) => change.band === band), {time: Infinity}]) {
        const x = Math.min(width, Math.max(left, Math.floor(xOf(time, width))));
        if (x > from) {
          if (bestTotal > total) {
            yield {x: from, columns: 1, band, stack: best};
            from += 1;
          }
          if (total > 0 && x > from) yield {x: from, columns: x - from, band, stack: [...now]};
          [from, best, bestTotal] = [x, null, -1];
        }
        if (time === Infinity) break;
        if (total > bestTotal && time > view.from) [best, bestTotal] = [[...now], total];
        now.set(rank, (now.get(rank) ?? 0) + by);
        total += by;
      }
    }
  }

  drawStack(context, x, columns, band, stack) {
    const [bottom, size] = this.scale(band);
    let y = bottom;
    context.globalAlpha = 0.72;
    // The rare labels, which share a colour, on top.
    for (const [rank, bytes] of stack.sort((a, b) => (a[0] === OTHER) - (b[0] === OTHER) || a[0] - b[0])) {
      context.fillStyle = colour(rank);
      context.fillRect(x, y - bytes * size, columns, bytes * size);
      y -= bytes * size;
    }
    context.globalAlpha = 1;
  }

  drawScale(context, left, width) {
    context.font = `11.5px ${theme.sans}`;
    context.textAlign = "right";
    context.fillStyle = theme.muted;
    if (this.memory.bank) {
      for (let band = 0; band < this.bands; band++) {
        const [bottom, size] = this.scale(band);
        context.fillText(`bank ${band}`, left - 10, bottom - this.limit * size / 2);
        if ((band + 1) * this.memory.bank === this.memory.capacity && this.bands > band + 1) drawLevel(context, left, width, bottom + 1.5);
      }
      return;
    }
    const [bottom, size] = this.scale(0);
    const step = binaryStep(this.limit / 5);
    context.strokeStyle = theme.line;
    for (let bytes = 0; bytes <= this.limit; bytes += step) {
      const y = Math.round(bottom - bytes * size) + 0.5;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(width, y);
      context.stroke();
      context.fillText(bytesText(bytes), left - 10, Math.min(Math.max(y, 8), this.height - 8));
    }
    const {capacity} = this.memory;
    if (capacity <= this.limit) drawLevel(context, left, width, bottom - capacity * size);
    context.fillStyle = theme.muted;
    const text = `capacity ${bytesText(capacity)}${capacity <= this.limit ? "" : " \u2191"}`;
    context.fillText(text, width - 6, capacity <= this.limit ? bottom - capacity * size + 10 : 12);
  }

  // The labels that have a colour of their own, by rank.
  ownLabels() {
    return [...this.ranks].filter(([, rank]) => rank !== OTHER).map(([label]) => fileless(texts[label]));
  }
}

// A dashed line: the capacity.
function drawLevel(context, left, width, at) {
  const y = Math.round(at) + 0.5;
  context.strokeStyle = theme.text;
  context.lineWidth = 1.25;
  context.setLineDash([6, 4]);
  context.beginPath();
  context.moveTo(left, y);
  context.lineTo(width, y);
  context.stroke();
  context.setLineDash([]);
  context.lineWidth = 1;
}

// The time that the pointer or the keys are at, in all pictures.
function drawCursor(context, width, top, bottom) {
  if (view.cursor === null || view.cursor < view.from || view.cursor > view.to) return;
  const x = Math.round(xOf(view.cursor, width)) + 0.5;
  context.strokeStyle = theme.select;
  context.globalAlpha = 0.6;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, bottom);
  context.stroke();
  context.globalAlpha = 1;
}

const SHOWN_ALIVE = 12;

// What is alive in a memory at a time, the largest first.
function showAlive(panel, live, time) {
  const {memory, ranks} = live;
  const tiles = live.alive(time);
  const list = element("ol", {class: "alive"});
  for (const tile of tiles.slice(0, SHOWN_ALIVE)) {
    const swatch = element("i", {class: "swatch"});
    swatch.style.background = colour(ranks.get(memory.label[tile]));
    const bank = memory.bank ? `, bank ${bandPieces(memory, tile).map(({band}) => band).join(", ")}` : "";
    const what = element("span", {}, fileless(texts[memory.label[tile]]), element("small", {}, `${texts[memory.shape[tile]]}${bank}`));
    list.append(element("li", {}, swatch, what, element("b", {}, bytesText(memory.bytes[tile]))));
  }
  const rest = tiles.length - SHOWN_ALIVE;
  const total = live.totalAt(time);
  const share = (100 * total / memory.capacity).toFixed(1);
  const under = `${bytesText(total)} a partition (${share} %) in ${tiles.length.toLocaleString("en-US")} ${tiles.length === 1 ? "tile" : "tiles"}`;
  panel.replaceChildren(
    element("h3", {"data-field": "time"}, `${memory.name} at ${momentText(time)}${time === live.when ? ", where most is alive" : ""}`), element("p", {class: "under", "data-field": "alive"}, under), list,
    ...(rest > 0 ? [element("p", {class: "empty"}, `and ${rest.toLocaleString("en-US")} smaller ones`)] : []),
  );
  delete panel.dataset.tile;
  Object.assign(panel.dataset, {memory: memory.name, time, bytes: total});
}

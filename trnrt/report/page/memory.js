// A memory over time: a rectangle a tile, from its first to its last use, on the bytes that it takes in a partition.

const TILE_GAP = 0.5;

class Memory {
  constructor(canvas) { this.canvas = canvas; }

  setMemory(memory) {
    this.memory = memory;
    this.used = memory.byte.reduce((most, byte, k) => Math.max(most, byte + memory.bytes[k]), 0);
    this.live = new Live(memory);
    this.colours = memory.label.map((label) => this.live.ranks.get(label));
  }

  get count() { return this.memory.byte.length; }

  // Bytes at the top of the picture: all there are, or a little more than are used.
  top(whole) {
    const {capacity} = this.memory;
    return whole || this.used > capacity / 3 ? capacity * 1.04 : Math.max(this.used * 1.12, 64);
  }

  // `mode`: "bytes" that are alive, or the "addresses" of tiles.
  setScale(whole, mode) {
    this.mode = mode;
    this.live.setScale(whole);
    this.limit = this.top(whole);
    this.height = this.memory.bank ? 190 : 230;
  }

  yOf(byte) { return this.height - 6 - byte / this.limit * (this.height - 14); }

  box(tile, width = this.canvas.clientWidth) {
    const {byte, bytes, start} = this.memory;
    const [x, right] = [xOf(start[tile], width), xOf(this.memory.end[tile], width)];
    const [y, bottom] = [this.yOf(byte[tile] + bytes[tile]), this.yOf(byte[tile])];
    return {x, y, width: Math.max(1, right - x), height: Math.max(1, bottom - y)};
  }

  // The tile at a point; of several (on other partitions) the one that begins last.
  hit(x, y) {
    const width = this.canvas.clientWidth;
    if (x < gutter(width)) return OTHER;
    let found = OTHER;
    for (let tile = 0; tile < this.count; tile++) {
      const box = this.box(tile, width);
      const inside = x >= box.x - 1 && x <= box.x + box.width + 1 && y >= box.y - 1 && y <= box.y + box.height + 1;
      if (inside && (found === OTHER || this.memory.start[tile] >= this.memory.start[found])) found = tile;
    }
    return found;
  }

  // Live bytes are what is used at once; an address range is where tiles lie, however little of it is used.
  summary(mode) {
    const {capacity, bank} = this.memory;
    const count = `${this.count.toLocaleString("en-US")} ${this.count === 1 ? "tile" : "tiles"}`;
    const {most, when} = this.live;
    if (mode === "bytes") {
      const banks = bank ? `, ${capacity / bank} banks of ${bytesText(bank)}` : "";
      return `at most ${bytesText(most)} of ${bytesText(capacity)} a partition alive at once (${(100 * most / capacity).toFixed(1)} %), at ${momentText(when)}; ${count}${banks}`;
    }
    const first = this.memory.byte.reduce((least, byte) => Math.min(least, byte), capacity);
    return `${count} between byte ${first.toLocaleString("en-US")} and byte ${this.used.toLocaleString("en-US")} of a partition; of this range at most ${bytesText(most)} are alive at once`;
  }

  draw(selected) {
    if (this.mode === "bytes") this.live.draw(this.canvas);
    else this.drawAddresses(selected);
  }

  drawAddresses(selected) {
    const [context, width] = prepared(this.canvas, this.height);
    const left = gutter(width);
    context.fillStyle = theme.faint;
    context.globalAlpha = 0.55;
    context.fillRect(left, 0, width - left, this.height - 6);
    context.globalAlpha = 1;
    drawTicks(context, width, 0, this.height - 6);
    this.drawScale(context, width);
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left, this.height);
    context.clip();
    // Tiles of the same bytes that share a pixel are drawn once.
    const drawn = new Map();
    for (let tile = 0; tile < this.count; tile++) {
      const column = Math.floor(xOf(this.memory.end[tile], width));
      if (drawn.get(this.memory.byte[tile]) === column && tile !== selected) continue;
      drawn.set(this.memory.byte[tile], column);
      this.drawTile(context, width, tile, tile === selected);
    }
    context.restore();
    if (this.memory.capacity <= this.limit) drawLevel(context, left, width, this.yOf(this.memory.capacity));
    drawCursor(context, width, 0, this.height - 6);
  }

  drawTile(context, width, tile, selected) {
    const {start, end} = this.memory;
    if (end[tile] <= view.from || start[tile] >= view.to) return;
    const box = this.box(tile, width);
    const x = Math.max(box.x, gutter(width) - 4);
    const right = Math.min(box.x + box.width, width + 4);
    const gap = box.height > 4 ? TILE_GAP : 0;
    context.globalAlpha = selected ? 0.85 : 0.5;
    context.fillStyle = colour(this.colours[tile]);
    context.fillRect(x, box.y + gap, Math.max(1, right - x - gap), box.height - gap);
    context.globalAlpha = 1;
    if (selected) {
      context.strokeStyle = theme.select;
      context.lineWidth = 2;
      context.strokeRect(x, box.y, Math.max(1, right - x), box.height);
    }
    if (right - x > 44 && box.height > 14) this.drawLabel(context, tile, x, right, box);
  }

  drawLabel(context, tile, x, right, box) {
    context.font = `11px ${theme.sans}`;
    context.textAlign = "left";
    context.fillStyle = theme.text;
    const from = Math.max(x, gutter(this.canvas.clientWidth)) + 5;
    const name = fileless(texts[this.memory.label[tile]]);
    context.fillText(fitted(context, name, right - from - 5), from, box.y + box.height / 2 + 0.5);
  }

  drawScale(context, width) {
    context.font = `11.5px ${theme.sans}`;
    context.textAlign = "right";
    context.fillStyle = theme.muted;
    context.strokeStyle = theme.line;
    const {bank} = this.memory;
    const step = bank || binaryStep(this.limit / 5);
    for (let byte = 0; byte <= this.limit; byte += step) {
      const y = Math.round(this.yOf(byte)) + 0.5;
      context.beginPath();
      context.moveTo(gutter(width), y);
      context.lineTo(width, y);
      context.stroke();
      if (bank) context.fillText(byte < this.memory.capacity ? `bank ${byte / bank}` : "", gutter(width) - 10, (y + this.yOf(byte + bank)) / 2);
      else context.fillText(byte === 0 ? "byte 0" : bytesText(byte), gutter(width) - 10, Math.min(Math.max(y, 7), this.height - 7));
    }
  }
}

// A power of two of bytes, at least `least`.
function binaryStep(least) { return 2 ** Math.ceil(Math.log2(Math.max(least, 1))); }

// A tile's label without the folders of the file that allocated it.
function fileless(label) { return label.replace(/^.*[\\/](?=[^\\/]*:\d+ in )/, ""); }

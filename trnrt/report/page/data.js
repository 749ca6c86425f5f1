// The data: columns of numbers become typed arrays, and spans find their row, issue, step and words.

const report = JSON.parse(document.getElementById("data").textContent);
const texts = report.texts;
const COLOURS = 12;
const OTHER = -1;

function accumulated(differences) {
  const values = new Float64Array(differences.length);
  let sum = 0;
  for (let k = 0; k < values.length; k++) values[k] = sum += differences[k];
  return values;
}

function summed(starts, lengths) {
  const values = new Float64Array(starts.length);
  for (let k = 0; k < values.length; k++) values[k] = starts[k] + lengths[k];
  return values;
}

// The first position in `order` whose span satisfies `after`, which holds from some position on.
function firstWhere(order, after) {
  let low = 0, high = order.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (after(order[middle])) high = middle; else low = middle + 1;
  }
  return low;
}

// A physical core. A span is an issue, or (from `issues` on) the trigger of a DMA transfer on its engine.
class Core {
  // `other`: a core of the run that this one is compared with.
  constructor(raw, other = false) {
    this.other = other;
    this.lanes = raw.lanes;
    this.duration = Math.max(raw.duration, 1);
    this.launch = raw.launch ?? 0;
    this.lane = Int32Array.from(raw.spans.lane);
    this.row = Int32Array.from(raw.spans.row);
    this.start = accumulated(raw.spans.start);
    this.end = summed(this.start, raw.spans.length);
    this.issues = raw.issues.instruction.length;
    this.instructionOf = raw.issues.instruction;
    this.waited = raw.issues.waited;
    this.instructions = raw.instructions;
    this.transfers = raw.transfers;
    this.transferOf = new Map(raw.transfers.issue.map((issue, transfer) => [issue, transfer]));
    this.memories = raw.memories.map((memory) => ({...memory, end: summed(memory.start, memory.length)}));
    this.laneRows = this.rowsByLane();
  }

  // lane -> its rows, each the spans in order of time; only lanes in use.
  rowsByLane() {
    const rows = new Map();
    const order = Int32Array.from(this.start.keys()).sort((a, b) => this.start[a] - this.start[b]);
    for (const span of order) {
      const lane = this.lane[span];
      if (!rows.has(lane)) rows.set(lane, []);
      (rows.get(lane)[this.row[span]] ??= []).push(span);
    }
    return new Map([...rows].sort((a, b) => a[0] - b[0]));
  }

  isTrigger(span) { return span >= this.issues; }
  issue(span) { return this.isTrigger(span) ? this.transfers.issue[span - this.issues] : span; }
  instruction(span) { return this.instructionOf[this.issue(span)]; }
  operation(span) { return texts[this.instructions.operation[this.instruction(span)]]; }
  name(span) { return texts[this.instructions.name[this.instruction(span)]]; }
  step(span) { return this.instructions.step[this.instruction(span)]; }
  label(span) { return (this.isTrigger(span) ? "trigger " : "") + (this.name(span) || this.operation(span)); }
  laneName(span) { return this.lanes[this.lane[span]]; }
  transfer(span) { return this.transferOf.get(this.issue(span)); }

  stepName(span) {
    const step = this.step(span);
    return step === OTHER ? `line ${this.instructions.line[this.instruction(span)]}` : report.steps[step].name;
  }

  // What a span waited for: another span, or OTHER. A trigger stands before its own transfer.
  producer(span) {
    if (this.isTrigger(span)) return OTHER;
    const distance = this.waited[span];
    return distance === 0 ? OTHER : span - distance;
  }

  // How long a span's lane had nothing to do before it.
  idleBefore(span) {
    const start = this.start[span];
    let last = 0;
    for (const row of this.laneRows.get(this.lane[span])) {
      const position = firstWhere(row ?? [], (other) => this.start[other] >= start);
      if (position > 0) last = Math.max(last, this.end[row[position - 1]]);
    }
    return Math.max(0, start - last);
  }

  // The neighbour of a span in its row.
  neighbour(span, direction) {
    const row = this.laneRows.get(this.lane[span])[this.row[span]];
    const position = firstWhere(row, (other) => this.start[other] >= this.start[span]);
    return row[position + direction] ?? span;
  }

  // The span of the next row (or lane) that is nearest in time.
  beside(span, direction) {
    const rows = [...this.laneRows.values()].flat();
    const own = this.laneRows.get(this.lane[span])[this.row[span]];
    const row = rows[rows.indexOf(own) + direction];
    return row === undefined ? span : this.nearest(row, this.start[span]);
  }

  nearest(row, time) {
    const position = Math.min(firstWhere(row, (other) => this.end[other] >= time), row.length - 1);
    const [after, before] = [row[position], row[Math.max(0, position - 1)]];
    return time - this.end[before] < this.start[after] - time ? before : after;
  }
}

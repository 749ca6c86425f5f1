// The canvas that one draws on, by mouse, finger, pen or keys. Strokes are in a square of 0 to 100.

const SIDE = 100;
const STEPS = 16;
const LINE = 7;
const MOVES = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};

export class Pad {
  // `changed` is called after each change, `said` with what a key did, in words.
  constructor(canvas, changed, said) {
    Object.assign(this, {canvas, changed, said, strokes: [], pen: [SIDE / 2, SIDE / 4], down: false, byKeys: false});
    this.pointer = null;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.release(event));
    canvas.addEventListener("keydown", (event) => this.type(event));
    canvas.addEventListener("focus", () => this.draw());
    canvas.addEventListener("blur", () => this.lift());
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  setStrokes(strokes) {
    this.strokes = strokes;
    this.down = false;
    this.update();
  }

  clear() { this.setStrokes([]); }
  undo() { this.setStrokes(this.strokes.slice(0, -1)); }

  lift() {
    this.down = false;
    this.byKeys = false;
    this.draw();
  }

  point(event) {
    const place = this.canvas.getBoundingClientRect();
    const inside = (value) => Math.min(SIDE, Math.max(0, value));
    return [inside((event.clientX - place.left) / place.width * SIDE), inside((event.clientY - place.top) / place.height * SIDE)];
  }

  press(event) {
    if (event.button !== 0 || this.pointer !== null) return;
    this.pointer = event.pointerId;
    this.canvas.setPointerCapture(event.pointerId);
    Object.assign(this, {down: false, byKeys: false});
    this.strokes = [...this.strokes, [this.point(event)]];
    this.update();
  }

  drag(event) {
    if (event.pointerId !== this.pointer) return;
    const passed = event.getCoalescedEvents?.() ?? [];
    this.strokes.at(-1).push(...(passed.length > 0 ? passed : [event]).map((each) => this.point(each)));
    this.update();
  }

  release(event) {
    if (event.pointerId === this.pointer) this.pointer = null;
  }

  type(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in MOVES) this.move(MOVES[event.key]);
    else if (event.key === " ") this.toggle();
    else if (event.key === "Backspace") this.taken();
    else if (event.key === "Delete") this.emptied();
    else return;
    event.preventDefault();
  }

  move([dx, dy]) {
    const inside = (value) => Math.min(SIDE * 15 / 16, Math.max(SIDE / 16, value));
    this.byKeys = true;
    this.pen = [inside(this.pen[0] + dx * SIDE / STEPS), inside(this.pen[1] + dy * SIDE / STEPS)];
    if (this.down) this.strokes.at(-1).push(this.pen);
    this.update();
    this.said(`${this.down ? "Drawing" : "Pen up"}, ${this.where()}`);
  }

  toggle() {
    this.byKeys = true;
    this.down = !this.down;
    if (this.down) this.strokes = [...this.strokes, [this.pen]];
    this.update();
    this.said(`Pen ${this.down ? "down" : "up"}, ${this.where()}`);
  }

  taken() {
    this.undo();
    this.said(`Last stroke removed, ${this.description()}`);
  }

  emptied() {
    this.clear();
    this.said("Drawing cleared");
  }

  where() {
    const [column, row] = this.pen.map((value) => Math.round(value / SIDE * STEPS));
    return `column ${column} of ${STEPS - 1}, row ${row} of ${STEPS - 1}`;
  }

  description() {
    if (this.strokes.length === 0) return "empty";
    return this.strokes.length === 1 ? "1 stroke" : `${this.strokes.length} strokes`;
  }

  update() {
    this.show();
    this.changed();
  }

  // Nothing is drawn any more, as something else is shown instead: that is no change of the drawing.
  blank() {
    Object.assign(this, {strokes: [], down: false});
    this.show();
  }

  show() {
    this.canvas.setAttribute("aria-label", `Drawing area, ${this.description()}`);
    this.draw();
  }

  draw() {
    const {canvas} = this;
    const size = Math.round(canvas.clientWidth * (window.devicePixelRatio || 1));
    if (size === 0) return;
    Object.assign(canvas, {width: size, height: size});
    const context = canvas.getContext("2d");
    context.scale(size / SIDE, size / SIDE);
    const style = getComputedStyle(canvas);
    Object.assign(context, {lineCap: "round", lineJoin: "round", lineWidth: LINE, strokeStyle: style.color});
    for (const stroke of this.strokes) drawStroke(context, stroke);
    if (this.byKeys && document.activeElement === canvas) this.drawPen(context, style.getPropertyValue("--pen"));
  }

  drawPen(context, colour) {
    const [x, y] = this.pen;
    Object.assign(context, {lineWidth: 1.2, strokeStyle: colour, fillStyle: colour});
    context.beginPath();
    context.arc(x, y, LINE * 0.75, 0, 2 * Math.PI);
    if (this.down) context.fill();
    context.stroke();
  }
}

function drawStroke(context, stroke) {
  context.beginPath();
  context.moveTo(...stroke[0]);
  for (const point of stroke.length > 1 ? stroke.slice(1) : stroke) context.lineTo(...point);
  context.stroke();
}

// Wheel, drag and pinch of the time on a canvas; `over` and `click` get a point of it.
function navigable(canvas, over, click) {
  const pointers = new Map();
  let dragged = 0;
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("wheel", (event) => {
    const [x] = point(event);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) pan((event.deltaX || event.deltaY) / 900);
    // With everything in view there is nothing to zoom out of: the page scrolls.
    else if (event.deltaY > 0 && view.to - view.from >= view.whole) return;
    else zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 180), timeAt(x, canvas.clientWidth));
    event.preventDefault();
    over(...point(event));
    redraw();
  }, {passive: false});
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, point(event));
    dragged = 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (before === undefined) return over(...point(event));
    dragged += Math.abs(point(event)[0] - before[0]);
    moved(canvas, pointers, event.pointerId, point(event));
    canvas.classList.toggle("dragged", dragged > 4);
    return redraw();
  });
  const release = (event) => {
    if (pointers.delete(event.pointerId) && event.type === "pointerup" && dragged <= 4) click(...point(event));
    canvas.classList.remove("dragged");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { if (pointers.size === 0) over(-1, -1); });
}

// One pointer pans; of two, the distance zooms.
function moved(canvas, pointers, id, [x, y]) {
  const width = canvas.clientWidth;
  const [before] = pointers.get(id);
  const other = [...pointers].find(([key]) => key !== id);
  if (other === undefined) {
    pan((before - x) / (width - gutter(width)));
  } else {
    const anchor = other[1][0];
    const factor = Math.max(10, Math.abs(before - anchor)) / Math.max(10, Math.abs(x - anchor));
    zoom(factor, timeAt(anchor, width));
  }
  pointers.set(id, [x, y]);
}

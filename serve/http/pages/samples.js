// Digits as strokes, in a square of 0 to 100: what "Use a sample" draws.

export const SAMPLES = {
  0: [arc(50, 50, 28, 42, -90, 270)],
  1: [[[34, 26], [54, 8], [54, 92]]],
  2: [[...arc(48, 30, 24, 22, -170, 40), [26, 90], [78, 90]]],
  3: [[...arc(46, 29, 25, 21, -150, 90), ...arc(46, 71, 28, 21, -90, 140)]],
  4: [[[52, 8], [20, 62], [80, 62]], [[62, 36], [62, 94]]],
  5: [[[74, 9], [32, 9], [29, 46], ...arc(47, 66, 27, 25, -120, 140)]],
  6: [[[60, 8], [38, 36], ...arc(50, 68, 24, 24, 190, 540)]],
  7: [[[22, 10], [78, 10], [44, 92]], [[32, 52], [72, 52]]],
  8: [[...arc(50, 29, 20, 21, 90, -270), ...arc(50, 71, 24, 21, -90, 270)]],
  9: [[...arc(50, 32, 24, 24, 0, -360), [74, 40], [64, 92]]],
};

// Points of an ellipse around (x, y), angles in degrees: 0 is right, 90 is down.
function arc(x, y, wide, tall, from, to) {
  const count = Math.ceil(Math.abs(to - from) / 12);
  return Array.from({length: count + 1}, (_, k) => {
    const angle = (from + (to - from) * k / count) * Math.PI / 180;
    return [x + wide * Math.cos(angle), y + tall * Math.sin(angle)];
  });
}

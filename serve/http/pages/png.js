// A grey picture as a PNG file: lossless, and made here, so that no browser changes a pixel on the way.

const SIGNATURE = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];

export async function pngOf(pixels, width, height) {
  const rows = new Uint8Array(height * (width + 1)); // each row starts with its filter: 0, none
  for (let y = 0; y < height; y++) rows.set(pixels.subarray(y * width, (y + 1) * width), y * (width + 1) + 1);
  const header = [...big(width), ...big(height), 8, 0, 0, 0, 0];
  const parts = [SIGNATURE, ...chunk("IHDR", header), ...chunk("IDAT", await zlib(rows)), ...chunk("IEND", [])];
  return Uint8Array.from(parts.flatMap((part) => [...part]));
}

async function zlib(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function chunk(name, data) {
  const named = [...Array.from(name, (letter) => letter.charCodeAt(0)), ...data];
  return [big(data.length), named, big(crc(named))];
}

function big(value) { return [value >>> 24, value >>> 16, value >>> 8, value].map((byte) => byte & 255); }

function crc(bytes) {
  let rest = -1;
  for (const byte of bytes) {
    rest ^= byte;
    for (let bit = 0; bit < 8; bit++) rest = rest & 1 ? (rest >>> 1) ^ 0xedb88320 : rest >>> 1;
  }
  return rest ^ -1;
}

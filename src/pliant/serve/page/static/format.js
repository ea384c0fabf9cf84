// Numbers as people read them: SI units, three digits.

function digits(value) {
  const size = Math.abs(value);
  if (size === 0 || size >= 99.95) return value.toFixed(0);
  return size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

/** [number, unit] of seconds. */
export function secondsIn(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return ["–", ""];
  const size = Math.abs(value);
  if (size >= 120) return [digits(value / 60), "min"];
  if (size >= 0.9995) return [digits(value), "s"];
  if (size >= 0.9995e-3 || size === 0) return [digits(value * 1e3), "ms"];
  return [digits(value * 1e6), "µs"];
}

/** As on an axis: without zeros behind the point. */
export const tick = (value) => secondsIn(value).map((part, i) => (i || !part.includes(".") ? part : part.replace(/\.?0+$/, ""))).join(" ");

export const seconds = (value) => secondsIn(value).join(" ").trim();

/** [number, unit] of bytes, by powers of 1000 as everywhere in pliant. */
export function bytesIn(value) {
  if (value === null || value === undefined) return ["–", ""];
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (Math.abs(value) >= size * 0.9995) return [digits(value / size), unit];
  }
  return [String(Math.round(value)), "B"];
}

export const bytes = (value) => bytesIn(value).join(" ").trim();
export const count = (value) => Math.round(value).toLocaleString("en-US");
export const percent = (value, n = 1) => (value === null || value === undefined || !Number.isFinite(value) ? "–" : `${(value * 100).toFixed(n)} %`);
export const rate = (value) => (value >= 99.95 ? value.toFixed(0) : value.toFixed(1));
export const ago = (value) => (value === null || value === undefined ? "–" : value < 1 ? "now" : `${seconds(value)} ago`);

export function clock(at_s) {
  const at = new Date(at_s * 1e3);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((n) => String(n).padStart(2, "0")).join(":");
}

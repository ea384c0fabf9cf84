// Bits of shards, memory, and what an input would get: tables and bars.
import { $, fill, h, rows, table, text } from "./dom.js";
import { bytes, count, percent, seconds } from "./format.js";
import { keyedCell } from "./charts.js";

const FULL = 32;

/** The bits that ran lately, or else those that are planned, in a row a layer. */
export function showBits(plan, shards, split) {
  if (!plan && split?.bits?.length) {
    showGrid(split.bits.map((bits) => [bits]), null, split.bits.map((_, i) => i), 1, "a cluster keeps each layer at one bitwidth");
    return;
  }
  if (!plan) {
    text($("bits-what"), "");
    delete $("bits").dataset.key;
    fill($("bits"), h("p", { class: "empty" }, "This model runs whole: it has no shards to choose bits for."));
    return;
  }
  const bits = shards?.ran ?? plan.bits;
  const planned = shards ? shards.planned : null;
  const layers = bits.map((_, i) => plan.layers[i] ?? i);
  const width = bits[0]?.length ?? 0;
  const which = shards ? "latest answer" : "plan";
  showGrid(bits, planned, layers, plan.n_slices, `${which}: ${bits.length} of ${plan.n_layers} layers, ${width} of ${plan.n_slices} slices, ${mean(bits).toFixed(2)} bits on average`);
}

function showGrid(bits, planned, layers, nSlices, what) {
  text($("bits-what"), what);
  const key = JSON.stringify([bits, planned, layers, nSlices]);
  if ($("bits").dataset.key === key) return;
  $("bits").dataset.key = key;
  const slices = Array.from({ length: nSlices }, (_, i) => i);
  const head = h("tr", {}, h("th", { scope: "col" }, "layer"), slices.map((i) => h("th", { scope: "col" }, String(i))));
  const body = bits.map((row, k) => h("tr", {}, h("th", { scope: "row" }, String(layers[k])), slices.map((i) => cell(row[i], planned?.[k]?.[i]))));
  fill($("bits"), h("table", { class: "bits" }, h("caption", { class: "hidden" }, "Bits by layer and slice"), h("thead", {}, head), h("tbody", {}, body)));
}

function cell(bits, planned) {
  if (bits === undefined) return h("td", { class: "left", title: "left out" });
  const depth = bits >= FULL ? 1 : 0.08 + (bits / 6) * 0.72;
  const isLess = planned !== undefined && bits < planned;
  const title = isLess ? `${bits} bits, ${planned} were planned: the rest came late` : `${bits} bits`;
  const kinds = [depth > 0.7 ? "deep" : "", isLess ? "less" : ""].join(" ").trim();
  return h("td", { class: kinds || null, title, "--a": depth.toFixed(2) }, String(bits));
}

function mean(grid) {
  const all = grid.flat();
  return all.length ? all.reduce((sum, bits) => sum + bits, 0) / all.length : 0;
}

/** What the session holds, within its budget; and of a budget that models share, each model's part, by `label`. */
export function showMemory(models, chosen, numbers, label) {
  const memory = chosen.memory;
  const parts = [];
  const measured = (memory?.parts ?? []).reduce((sum, part) => sum + part.measured_bytes, 0);
  const budget = memory?.budget_bytes ?? null;
  const what = [];
  if (memory && measured) what.push(budget ? `${bytes(measured)} of ${bytes(budget)}` : `${bytes(measured)}, no bound`);
  what.push(`process ${bytes(numbers.rss_bytes)}`);
  text($("memory-what"), what.join(" · "));
  if (memory && memory.parts.length) {
    const whole = Math.max(budget ?? 0, measured, 1);
    parts.push(bar(memory.parts.map((part, i) => ({ name: part.name, share: part.measured_bytes / whole, color: `--c${i % 8}` }))));
    const columns = [["Part", "wrap"], ["Predicted", "n"], ["Measured", "n"]];
    const shown = [...memory.parts.map((part, i) => [part, `--c${i % 8}`]), ...memory.beside.map((part) => [{ ...part, name: `beside: ${part.name}` }, null])];
    parts.push(table("Memory", columns, shown.map(([part, color]) => [
      color ? wrapped(keyedCell(`var(${color})`, part.name)) : h("td", { class: "wrap" }, part.name),
      part.predicted_bytes === null ? "–" : bytes(part.predicted_bytes), bytes(part.measured_bytes),
    ])));
  } else {
    parts.push(h("p", { class: "empty" }, "This session does not say what it holds."));
  }
  if (numbers.budget_bytes) {
    const shares = models.filter((model) => numbers.models[model.key]?.share).map((model) => ({ ...numbers.models[model.key].share, name: label(model) }));
    parts.push(h("p", { class: "note" }, `All models share ${bytes(numbers.budget_bytes)}:`));
    parts.push(bar(shares.map((share, i) => ({ name: share.name, share: share.held_bytes / numbers.budget_bytes, color: `--c${i % 8}` }))));
    parts.push(table("Shares", [["Model"], ["Share", "n"], ["Held", "n"], ["Loading", "n"], ["Asked a minute", "n"]], shares.map((share, i) => [
      keyedCell(`var(--c${i % 8})`, share.name), bytes(share.share_bytes), bytes(share.held_bytes), share.loading_s ? seconds(share.loading_s) : "–", count(share.n_asked),
    ])));
  }
  const key = JSON.stringify([memory, numbers.budget_bytes, models.map((model) => [label(model), numbers.models[model.key]?.share])]);
  if ($("memory").dataset.key === key) return;
  $("memory").dataset.key = key;
  fill($("memory"), ...parts);
}

function wrapped(cell) {
  cell.className = "wrap";
  return cell;
}

function bar(parts) {
  const words = parts.map(({ name, share }) => `${name} ${percent(share, 0)}`).join(", ");
  return h("div", { class: "bar", role: "img", "aria-label": words }, parts.filter(({ share }) => share > 0).map(({ name, share, color }) =>
    h("i", { "--w": `${(share * 100).toFixed(2)}%`, "--k": `var(${color})`, title: `${name}: ${percent(share)}` })));
}

/** `found` is what /v2/pliant/route says of a length and terms. */
export function showExplanation(found, name, color) {
  const target = found.target === null ? "No answer" : name(found.target);
  text($("explain-why"), `${target}: ${found.reason}${/[.!?]$/.test(found.reason) ? "" : "."}`);
  const columns = [["Endpoint", "name"], ["Expected", "n"], ["95 %", "n"], ["Accuracy", "n"], ["Why not", "wrap"]];
  const words = { memory: "no memory for this length", floor: "less accurate than asked", deadline: "later than the deadline" };
  rows($("explain"), columns, found.candidates.map((row) => [
    keyedCell(`var(${color(row.target)})`, name(row.target)), seconds(row.total_s), seconds(row.bound_s),
    row.accuracy === null ? "–" : percent(row.accuracy), row.is_chosen ? "chosen" : row.reason ?? words[row.constraint] ?? "",
  ]), found.candidates.map((row) => (row.is_chosen ? "chosen" : null)));
}

export function refuseExplanation(why) {
  text($("explain-why"), why);
  rows($("explain"), [], []);
}

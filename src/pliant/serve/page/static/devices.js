// This device, the nodes above it and the workers of its cluster, with links between them and shares in them.
import { $, fill, s, table, text } from "./dom.js";
import { ago, bytes, seconds } from "./format.js";

const BOX = { width: 158, height: 74, gap: 14, between: 46 };

export class Devices {
  constructor() {
    this.last = null;
    new ResizeObserver(() => this.last && this.draw()).observe($("devices"));
  }

  /** `devices` and `split` are what the node's numbers say of a model; `self` is the node's name. */
  show(self, devices, split) {
    this.last = { self, devices, split };
    const above = devices.filter((one) => one.kind === "upstream");
    const beside = devices.filter((one) => one.kind === "worker");
    text($("devices-what"), above.length + beside.length ? [above.length && `${above.length} above`, beside.length && `${beside.length} in the cluster`, split && `mode ${split.mode}`].filter(Boolean).join(" · ") : "this one alone");
    this.draw();
    this.tables();
  }

  draw() {
    const { self, devices, split } = this.last;
    const width = Math.max($("devices").clientWidth, 170);
    const perRow = Math.max(1, Math.floor((width + BOX.gap) / (BOX.width + BOX.gap)));
    const tiers = [devices.filter((one) => one.kind === "upstream"), [{ name: self, kind: "self", state: "ready" }], devices.filter((one) => one.kind === "worker")].filter((tier) => tier.length);
    const shown = devices.map((one) => [
      one.name, one.kind, one.node, one.state, one.reason, one.in_flight, one.limit, seconds(one.wait_s), one.n_threads, bytes(one.free_bytes),
      rough(one.rtt_s), rough(one.bandwidth_Bps),
    ]);
    const key = JSON.stringify([width, self, split, shown]);
    if (this.key === key) return;
    this.key = key;
    const places = [];
    let y = 2;
    for (const tier of tiers) {
      for (let from = 0; from < tier.length; from += perRow) {
        const row = tier.slice(from, from + perRow);
        const left = (width - row.length * BOX.width - (row.length - 1) * BOX.gap) / 2;
        row.forEach((one, i) => places.push({ one, x: left + i * (BOX.width + BOX.gap), y }));
        y += BOX.height + (from + perRow < tier.length ? BOX.gap : BOX.between);
      }
    }
    const height = y - BOX.between + 4;
    const hub = places.find(({ one }) => one.kind === "self");
    const picture = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Devices and links; the table below says the same" });
    for (const place of places) if (place !== hub) picture.append(...link(place, hub, split));
    for (const place of places) picture.append(box(place, split, self));
    fill($("devices"), picture);
  }

  tables() {
    const { devices, split } = this.last;
    const key = JSON.stringify([devices, split]);
    if (this.tableKey === key) return;
    this.tableKey = key;
    const columns = [["Device", "wrap"], ["Kind"], ["State"], ["Round trip", "n"], ["Bandwidth", "n"], ["In flight", "n"], ["Waiting", "n"], ["Heard", "n"], ["Why", "wrap"]];
    const parts = [table("Devices", columns, devices.map((one) => [
      one.node && one.node !== one.name ? `${one.name} (${one.node})` : one.name, one.kind, one.state, seconds(one.rtt_s), speed(one.bandwidth_Bps),
      one.in_flight === null ? "–" : `${one.in_flight} of ${one.limit}`, one.waiting === null ? "–" : String(one.waiting), ago(one.heard_s_ago), one.reason ?? "",
    ]))];
    if (split) {
      parts.push(table("Shares", [["Device"], ["Heads", "n"], ["Rows", "n"], ["Columns", "n"]], split.shares.map((share) => [share.device, String(share.heads), String(share.rows), String(share.columns)])));
      parts.push(table("Links", [["From"], ["To"], ["Latency", "n"], ["Bandwidth", "n"]], split.ways.map((way) => [way.src, way.dst, seconds(way.latency_s), speed(way.bandwidth_Bps)])));
    }
    fill($("devices-table"), ...parts);
  }
}

const plain = (name) => name.replace(/^https?:\/\//, "");
const rough = (value) => (value ? Number(value.toPrecision(2)) : value);
const speed = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

function box({ one, x, y }, split, self) {
  const isSelf = one.kind === "self";
  const inside = s("g", { transform: `translate(${x} ${y})` }, s("title", {}, [one.name, one.state, one.reason].filter(Boolean).join(": ")),
    s("rect", { class: isSelf ? "box self" : "box", width: BOX.width, height: BOX.height, rx: 3 }),
    s("text", { class: "ink", x: 10, y: 19 }, short(one.node || plain(one.name), 22)),
    s("text", { class: one.state === "ready" ? null : "over", x: 10, y: 36 }, isSelf ? "this device" : short(one.node ? `${plain(one.name)}, ${state(one)}` : state(one), 27)));
  const share = split?.shares.find((each) => each.device === (isSelf ? split.primary : one.name));
  if (share) inside.append(...shares(share, split));
  else if (one.kind === "upstream" && one.limit) inside.append(...part(0, one.in_flight / one.limit, "--c2", `${one.in_flight} of ${one.limit} in flight`));
  return inside;
}

function state(one) {
  if (one.state !== "ready") return one.state;
  return one.kind === "worker" ? `${one.n_threads} thread${one.n_threads === 1 ? "" : "s"}, ${bytes(one.free_bytes)} free` : one.wait_s > 0.0005 ? `ready, ${seconds(one.wait_s)} wait` : "ready";
}

/** A bar of this device's part of the heads, or of the rows where heads are not divided. */
function shares(share, split) {
  const of = (kind) => split.shares.reduce((sum, each) => sum + each[kind], 0);
  const kind = split.mode === "ws" ? "heads" : "columns";
  const whole = of(kind) || 1;
  return part(0, share[kind] / whole, "--c1", `${share.heads} heads, ${share.rows} rows`);
}

function part(x, value, color, words) {
  const full = BOX.width - 20;
  return [
    s("rect", { x: 10 + x, y: 44, width: full, height: 4, fill: "none", class: "hair" }),
    s("rect", { class: "part", x: 10 + x, y: 44, width: Math.max(0, Math.min(1, value)) * full, height: 4, "--k": `var(${color})` }),
    s("text", { x: 10, y: 64 }, words),
  ];
}

function link(place, hub, split) {
  const isAbove = place.y < hub.y;
  const [x, y] = [place.x + BOX.width / 2, isAbove ? place.y + BOX.height : place.y];
  const [hx, hy] = [hub.x + BOX.width / 2, isAbove ? hub.y : hub.y + BOX.height];
  const way = split?.ways.find((each) => each.src === split.primary && each.dst === place.one.name);
  const rtt = place.one.rtt_s ?? (way ? way.latency_s * 2 : null);
  const bandwidth = place.one.bandwidth_Bps ?? way?.bandwidth_Bps ?? null;
  const middle = isAbove ? y + BOX.between / 2 : y - BOX.between / 2;
  const line = s("path", { class: "hair", d: `M${x} ${y}V${middle}H${hx}V${hy}` });
  if (rtt === null) return [line];
  const label = s("text", { x: x + 6, y: isAbove ? y + 15 : y - 8 }, `${seconds(rtt)} · ${speed(bandwidth)}`);
  return [line, label];
}

const short = (name, n) => (name.length > n ? `${name.slice(0, n - 1)}…` : name);

// One request: its lanes in time, what was predicted above what was measured.
import { $, fill, h, s, table, text } from "./dom.js";
import { bytes, clock, percent, seconds, tick } from "./format.js";

const ROW = 30;
const AXIS = 22;

export class Timeline {
  /** `name(target)` is what an endpoint is called for people. */
  constructor(name) {
    this.name = name;
    this.shown = null;
    new ResizeObserver(() => this.shown && this.draw()).observe($("timeline"));
  }

  clear() {
    this.shown = null;
    this.drawnAt = 0;
    fill($("timeline"), h("p", { class: "empty" }, "Choose a request above: its queue, loads, layers and exchanges are shown here."));
    for (const id of ["answer-what", "answer-why"]) text($(id), "");
    fill($("timeline-table"));
    $("answer-text").hidden = true;
  }

  /** `answer` is what /v2/pliant/answer gave. */
  show(answer) {
    this.shown = answer;
    const [number, id, at, length, target, outcome, took, waited, deadline, met, accuracy] = answer.event;
    const due = deadline === null ? "no deadline" : `${met ? "in time for" : "late for"} ${seconds(deadline)}`;
    const parts = [
      `${clock(at)}`, id && `id ${id.slice(0, 20)}`, `length ${length}`, this.name(target),
      outcome === "ok" ? seconds(took) : `${outcome} after ${seconds(took)}`, due,
      waited > 0.0005 ? `waited ${seconds(waited)}` : null, accuracy === null ? null : `accuracy ${percent(accuracy)}`,
      answer.n_faults ? `${answer.n_faults} segments repeated` : null,
    ];
    text($("answer-what"), parts.filter(Boolean).join(" · "));
    $("answer-what").dataset.number = number;
    const others = answer.candidates.slice(1).map((one) =>
      `${this.name(one.target)} ${seconds(one.seconds)}${one.excluded ? ` (misses the ${one.excluded})` : ""}`);
    const why = answer.error ?? (answer.reason ? `${this.name(target)}: ${answer.reason}.` : "");
    text($("answer-why"), others.length ? `${why} Others: ${others.join(", ")}.` : why);
    $("answer-text").hidden = answer.text === null;
    text($("answer-text"), answer.text ?? "");
    this.draw();
    this.steps();
  }

  draw() {
    const { lanes, predicted, measured, event } = this.shown;
    const deadline = event[8];
    const width = Math.max($("timeline").clientWidth, 200);
    const left = Math.min(150, Math.max(70, width * 0.14));
    const end = Math.max(...[...predicted, ...measured].map((bar) => bar.end_s), event[6], 1e-9);
    const isNear = deadline !== null && deadline < end * 2.5;
    const most = (isNear ? Math.max(end, deadline) : end) * 1.02;
    const x = (at) => left + (Math.min(at, most) / most) * (width - left - 4);
    const height = lanes.length * ROW + AXIS;
    const picture = s("svg", {
      viewBox: `0 0 ${width} ${height}`, height, role: "img",
      "aria-label": `Predicted ${seconds(sum(predicted))}, measured ${seconds(event[6])}`,
    });
    for (const at of ticks(most, width < 500 ? 4 : 8)) {
      picture.append(s("line", { class: "hair", x1: x(at), x2: x(at), y1: 0, y2: height - AXIS + 4 }),
        s("text", { x: x(at), y: height - 5, "text-anchor": at ? "middle" : "start" }, at ? tick(at) : "0"));
    }
    lanes.forEach((lane, i) => {
      const y = i * ROW;
      if (i) picture.append(s("line", { class: "hair", x1: 0, x2: width, y1: y - 0.5, y2: y - 0.5 }));
      picture.append(s("text", { class: "ink", x: 0, y: y + 17 }, short(this.name(lane), left / 7)));
      for (const [bars, kind, top] of [[predicted, "predicted", y + 3], [measured, "measured", y + 13]]) {
        for (const bar of bars) {
          if (bar.lane !== lane) continue;
          const [from, to] = [x(bar.start_s), x(bar.end_s)];
          const odd = typeof bar.layer === "number" && bar.layer % 2 ? " odd" : "";
          const cut = bar.state === "cut" ? " cut" : "";
          picture.append(s("rect", { class: `${bar.kind} ${kind}${odd}${cut}`, x: from, y: top, width: Math.max(to - from, 0.8), height: kind === "predicted" ? 8 : 10 },
            s("title", {}, `${kind}: ${bar.label}, ${seconds(bar.end_s - bar.start_s)} from ${seconds(bar.start_s)}${bar.n_bytes ? `, ${bytes(bar.n_bytes)}` : ""}`)));
        }
      }
    });
    if (isNear) {
      picture.append(s("line", { class: "due", x1: x(deadline), x2: x(deadline), y1: 0, y2: height - AXIS + 4 }));
    }
    fill($("timeline"), picture, this.key(predicted));
  }

  key(predicted) {
    const kinds = [["wait", "--wait", "queue and way"], ["compute", "--compute", "computing"], ["load", "--load", "loading"], ["exchange", "--exchange", "exchanging"]];
    const seen = new Set([...this.shown.predicted, ...this.shown.measured].map((bar) => bar.kind));
    return h("ul", { class: "legend note" },
      kinds.filter(([kind]) => seen.has(kind)).map(([, color, name]) => h("li", {}, h("span", { class: "key", "--k": `var(${color})` }), name)),
      h("li", { class: "share" }, predicted.length ? "upper, pale: predicted · lower: measured" : "nothing was predicted"));
  }

  steps() {
    const { predicted, measured } = this.shown;
    const of = new Map(predicted.map((bar) => [`${bar.lane}\n${bar.label}`, bar]));
    const taken = measured.map((bar) => {
      const was = of.get(`${bar.lane}\n${bar.label}`);
      of.delete(`${bar.lane}\n${bar.label}`);
      return [bar.lane, bar.label, was ? seconds(was.end_s - was.start_s) : "–", seconds(bar.end_s - bar.start_s), seconds(bar.start_s), bar.n_bytes ? bytes(bar.n_bytes) : ""];
    });
    const untaken = [...of.values()].map((bar) => [bar.lane, bar.label, seconds(bar.end_s - bar.start_s), "–", "", bar.n_bytes ? bytes(bar.n_bytes) : ""]);
    const columns = [["Lane"], ["Step"], ["Predicted", "n"], ["Measured", "n"], ["From", "n"], ["Bytes", "n"]];
    fill($("timeline-table"), table("Steps of the request", columns, [...taken, ...untaken]));
  }
}

const sum = (bars) => bars.reduce((most, bar) => Math.max(most, bar.end_s), 0);
const short = (name, n) => (name.length > n ? `${name.slice(0, Math.max(3, Math.floor(n) - 1))}…` : name);

function ticks(most, n) {
  const rough = most / n;
  const decade = 10 ** Math.floor(Math.log10(rough));
  const by = [1, 2, 5, 10].find((one) => one * decade >= rough) * decade;
  return Array.from({ length: Math.floor(most / by) + 1 }, (_, i) => i * by);
}

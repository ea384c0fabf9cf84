// Two charts drawn by uPlot: time by length with today's choice below it, and answers against their deadlines.
import { $, css, fill, h, keyed, rows, table, text } from "./dom.js";
import { percent, seconds, tick } from "./format.js";
import { quantile } from "./answers.js";

const N_BINS = 60;
const MOST = 1.5; // of the deadline

/** A uPlot in `parent` that is made anew where its series, its size or the colours of the page change. */
class Chart {
  constructor(parent, options) {
    this.parent = parent;
    this.options = options;
    this.plot = null;
    this.key = "";
    new ResizeObserver(() => this.again()).observe(parent);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.again());
  }

  again() {
    this.key = "";
    if (this.last) this.show(...this.last);
  }

  empty(why) {
    this.plot?.destroy();
    this.plot = this.last = null;
    this.key = "";
    if (this.parent.textContent !== why) fill(this.parent, h("p", { class: "empty" }, why));
  }

  show(series, data) {
    this.last = [series, data];
    const width = this.parent.clientWidth;
    if (!width) return;
    const key = JSON.stringify([series, width]);
    if (this.plot && this.key === key) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    fill(this.parent);
    const lines = series.map(({ name, color, dash, thin }) => ({
      label: name, stroke: css(color), width: thin ? 1 : 1.7, dash: dash ? [4, 4] : undefined, points: { show: false }, spanGaps: true,
    }));
    this.plot = new uPlot({ ...this.options(), width, height: this.parent.clientHeight, legend: { show: false }, series: [{}, ...lines] }, data, this.parent);
    this.key = key;
  }
}

function axis(more) {
  return {
    stroke: css("--dim"), font: `11.5px ${css("--sans")}`, grid: { stroke: css("--hair"), width: 1 },
    ticks: { stroke: css("--hair"), width: 1, size: 4 }, gap: 4, ...more,
  };
}

export class Curves {
  constructor(name, color) {
    this.name = name;
    this.color = color;
    this.chart = new Chart($("curves"), () => ({
      padding: [8, 20, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, distr: 3, log: 2 }, y: { distr: 3 } },
      axes: [
        axis({ size: 26, filter: (_, all) => all, splits: (plot) => powers(plot.scales.x, 2, [1]), values: (_, all) => all.map(String) }),
        axis({ size: 56, filter: (_, all) => all, splits: (plot) => powers(plot.scales.y, 10, [1, 3]), values: (_, all) => all.map(tick) }),
      ],
    }));
  }

  /** `outlook` is what /v2/pliant/outlook gave. */
  show(outlook, terms) {
    text($("curves-terms"), terms);
    const names = Object.keys(outlook.seconds).filter((name) => outlook.seconds[name].some((took) => took > 0));
    if (!names.length) {
      this.chart.empty("Nothing was measured yet: the first answers tell.");
    } else {
      const above = (all) => all.map((took) => (took > 0 ? took : null));
      const series = names.flatMap((name) => [{ name, color: this.color(name) }, { name: `${name}, bound`, color: this.color(name), dash: true, thin: true }]);
      this.chart.show(series, [outlook.lengths, ...names.flatMap((name) => [above(outlook.seconds[name]), above(outlook.bounds[name])])]);
    }
    this.strip(outlook);
    const columns = [["Length", "n"], ["Chosen"], ...names.flatMap((name) => [[this.name(name), "n"], ["95 %", "n"]]), ["Why"]];
    fill($("curves-table"), table("Time by length", columns, outlook.lengths.map((n, i) => [
      String(n), outlook.chosen[i] === null ? "refused" : this.name(outlook.chosen[i]),
      ...names.flatMap((name) => [seconds(outlook.seconds[name][i]), seconds(outlook.bounds[name][i])]), outlook.reasons[i],
    ])));
  }

  /** Neighbouring lengths with one choice are one band, as wide as on the axis above. */
  strip(outlook) {
    const { lengths, chosen, accuracies } = outlook;
    const bands = [];
    lengths.forEach((n, i) => {
      const last = bands.at(-1);
      const accuracy = chosen[i] === null ? null : accuracies[chosen[i]][i];
      if (last && last.target === chosen[i] && last.accuracy === accuracy) last.to = i;
      else bands.push({ target: chosen[i], from: i, to: i, accuracy });
    });
    const at = (i) => Math.log(lengths[Math.min(Math.max(i, 0), lengths.length - 1)]);
    const half = (i) => (at(i) + at(i + 1)) / 2;
    const strip = $("strip");
    const [left, right] = this.chart.plot ? [this.chart.plot.bbox.left, this.chart.plot.bbox.left + this.chart.plot.bbox.width].map((x) => x / devicePixelRatio) : [0, strip.clientWidth];
    strip.style.marginLeft = `${left}px`;
    strip.style.marginRight = `${Math.max(0, $("curves").clientWidth - right)}px`;
    fill(strip, bands.map(({ target, from, to, accuracy }) => {
      const width = Math.max(half(to) - half(from - 1), 0.02);
      const range = from === to ? `${lengths[from]}` : `${lengths[from]} to ${lengths[to]}`;
      const name = target === null ? "refused" : this.name(target);
      const words = `${name}${accuracy === null ? "" : ` at ${percent(accuracy)}`}`;
      const title = `length ${range}: ${words}`;
      return h("li", { class: target === null ? "none" : null, title, "aria-label": title, "--w": width, "--k": target === null ? null : `var(${this.color(target)})` }, words);
    }));
  }
}

export class Attained {
  constructor(name, color) {
    this.name = name;
    this.color = color;
    this.chart = new Chart($("attained"), () => ({
      padding: [8, 16, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: [0, MOST] }, y: { range: [0, 1.02] } },
      axes: [
        axis({ size: 26, incrs: [0.25, 0.5], values: (_, all) => all.map((part) => `${Math.round(part * 100)} %`) }),
        axis({ size: 46, incrs: [0.25], values: (_, all) => all.map((part) => `${Math.round(part * 100)} %`) }),
      ],
      hooks: { draw: [(plot) => guides(plot)] },
    }));
  }

  /** `found` is a summary of `answers`. */
  show(answers, found) {
    const { all, by } = found;
    const some = answers.endpoints.map((name, i) => ({ name, one: by[i] })).filter(({ one }) => one.due);
    text($("attained-what"), all.due ? `${percent(all.inTime / all.due)} of ${all.due} in time` : "");
    if (!some.length) {
      this.chart.empty("No request brought a deadline in the last minute.");
    } else {
      const xs = Array.from({ length: N_BINS + 1 }, (_, i) => (i * MOST) / N_BINS);
      const series = some.map(({ name }) => ({ name, color: this.color(name) }));
      this.chart.show(series, [xs, ...some.map(({ one }) => cumulative(one.shares))]);
    }
    const columns = [["Endpoint", "name"], ["Answers", "n"], ["In time", "n"], ["Median", "n"], ["95 %", "n"], ["Accuracy", "n"]];
    rows($("endpoints"), columns, answers.endpoints.map((name, i) => [name, by[i]]).filter(([, one]) => one.n).map(([name, one]) => [
      keyedCell(`var(${this.color(name)})`, this.name(name)), String(one.n), one.due ? percent(one.inTime / one.due) : "–",
      seconds(quantile(one.times, 0.5)), seconds(quantile(one.times, 0.95)), one.rated ? percent(one.accuracy / one.rated) : "–",
    ]));
  }
}

export const keyedCell = (color, name) => h("td", { class: "name", title: name }, keyed(color, name));

/** The share of answers that took at most each part of their deadline. */
function cumulative(shares) {
  const bins = new Float64Array(N_BINS + 1);
  for (const share of shares) {
    const bin = Math.ceil((share / MOST) * N_BINS);
    if (bin <= N_BINS) bins[bin] += 1;
  }
  let n = 0;
  return Array.from(bins, (one) => (n += one) / shares.length);
}

/** The numbers of a logarithmic axis: fewer where it is long. */
function powers({ min, max }, base, steps) {
  const [low, high] = [min, max].map((value) => Math.log(value) / Math.log(base));
  const found = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const step of high - low > 3 ? [1] : steps) {
      const value = step * base ** power;
      if (value >= min * 0.999 && value <= max * 1.001) found.push(value);
    }
  }
  return found;
}

/** Where the deadline is, and the share that is promised. */
function guides(plot) {
  const pen = plot.ctx;
  const { left, top, width, height } = plot.bbox;
  pen.save();
  pen.strokeStyle = css("--bad");
  pen.lineWidth = devicePixelRatio;
  pen.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  pen.beginPath();
  const x = plot.valToPos(1, "x", true);
  const y = plot.valToPos(0.95, "y", true);
  pen.moveTo(x, top);
  pen.lineTo(x, top + height);
  pen.moveTo(left, y);
  pen.lineTo(left + width, y);
  pen.stroke();
  pen.restore();
}


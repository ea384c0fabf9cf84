// Requests on a time axis: a mark each, coloured by who answered. The marks scroll; only new ones are drawn.
import { $, css, h, isStill } from "./dom.js";
import { seconds, tick } from "./format.js";

const MARGIN = { left: 52, right: 8, top: 8, bottom: 44 };
const DELAY_S = 0.25; // events come ten times a second: the right edge is as much behind now
const STILL_MS = 1000;
const STEPS = [1, 2, 5];

export class Scatter {
  /** `colors(i)` is the i-th endpoint's colour; `picked(k)` is told which answer was chosen. */
  constructor(colors, picked) {
    this.colors = colors;
    this.picked = picked;
    this.answers = null;
    this.span = 60;
    this.low = 1e-3;
    this.high = 1;
    this.drawn = 0; // answers on the canvas so far
    this.edge = 0; // time at the left edge of the canvas
    this.selected = null;
    this.shift = 0; // the node's clock less this one's
    this.lastFrame = 0;
    this.grid = $("grid");
    this.points = $("points");
    new ResizeObserver(() => this.reset()).observe($("scatter"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.reset());
    this.points.addEventListener("pointermove", (event) => this.hover(event));
    this.points.addEventListener("pointerleave", () => ($("tip").hidden = true));
    this.points.addEventListener("click", (event) => this.choose(this.near(event)));
    this.points.addEventListener("keydown", (event) => this.walk(event));
  }

  show(answers) {
    this.answers = answers;
    this.selected = null;
    this.reset();
  }

  now() {
    return Date.now() / 1e3 + this.shift - DELAY_S;
  }

  reset() {
    const box = $("scatter").getBoundingClientRect();
    if (!box.width || !this.answers) return;
    this.scale = Math.min(devicePixelRatio || 1, 2);
    this.width = Math.round(box.width * this.scale);
    this.height = Math.round(box.height * this.scale);
    for (const canvas of [this.grid, this.points]) {
      canvas.width = this.width;
      canvas.height = this.height;
    }
    this.left = MARGIN.left * this.scale;
    this.right = this.width - MARGIN.right * this.scale;
    this.top = MARGIN.top * this.scale;
    this.bottom = this.height - MARGIN.bottom * this.scale;
    this.perPixel = this.span / (this.right - this.left);
    this.edge = this.now() - this.span;
    this.drawn = this.answers.first;
    this.palette = this.answers.endpoints.map((_, i) => this.colors(i));
    this.bad = css("--bad");
    this.drawGrid();
    this.drawNew();
  }

  /** The range of times seen, with hysteresis, so that the axis seldom jumps. */
  rescale() {
    let low = Infinity;
    let high = 0;
    this.answers.recent(this.now() - this.span, (i) => {
      const took = this.answers.seconds[i];
      if (took > 0) {
        low = Math.min(low, took);
        high = Math.max(high, took, this.answers.deadline[i] || 0);
      }
    });
    if (!high) return;
    const [lowest, highest] = [step(low * 0.9, Math.floor), step(high * 1.1, Math.ceil)];
    const isTight = lowest >= this.low && highest <= this.high && lowest < this.low * 4 && highest > this.high / 4;
    if (isTight) return;
    this.low = Math.min(lowest, highest / 8);
    this.high = highest;
    this.reset();
  }

  frame(time) {
    if (!this.answers || !this.width) return;
    if (isStill() && time - this.lastFrame < STILL_MS) return;
    this.lastFrame = time;
    const by = Math.floor((this.now() - this.span - this.edge) / this.perPixel);
    if (by >= this.right - this.left) {
      this.reset();
      return;
    }
    const pen = this.points.getContext("2d");
    if (by > 0) {
      pen.globalCompositeOperation = "copy";
      pen.drawImage(this.points, -by, 0);
      pen.globalCompositeOperation = "source-over";
      pen.clearRect(0, 0, this.left, this.height);
      this.edge += by * this.perPixel;
    }
    if (this.palette.length < this.answers.endpoints.length) {
      this.palette = this.answers.endpoints.map((_, i) => this.colors(i));
    }
    this.drawNew();
    this.drawSelected();
  }

  x(at) {
    return this.left + (at - this.edge) / this.perPixel;
  }

  y(took) {
    const part = Math.log(Math.max(took, this.low) / this.low) / Math.log(this.high / this.low);
    return this.bottom - Math.min(part, 1) * (this.bottom - this.top);
  }

  drawNew() {
    const { answers, scale } = this;
    const pen = this.points.getContext("2d");
    const size = 3 * scale;
    const half = size / 2;
    const rail = this.bottom + 12 * scale;
    let k = Math.max(this.drawn, answers.first);
    for (; k < answers.n; k += 1) {
      const i = k & (answers.at.length - 1);
      const x = this.x(answers.at[i]);
      if (x > this.width) break; // the canvas has not scrolled that far: a later frame draws it
      if (x < this.left) continue;
      if (answers.outcome[i] !== 0) {
        pen.fillStyle = this.bad;
        pen.fillRect(x - scale / 2, rail, scale, 7 * scale);
        continue;
      }
      const y = this.y(answers.seconds[i]);
      pen.fillStyle = this.palette[answers.endpoint[i]] || "#888";
      pen.fillRect(x - half, y - half, size, size);
      if (answers.late[i]) this.cross(pen, x, y, 3.5 * scale);
    }
    this.drawn = k;
  }

  cross(pen, x, y, arm) {
    pen.strokeStyle = this.bad;
    pen.lineWidth = 1.3 * this.scale;
    pen.beginPath();
    pen.moveTo(x - arm, y - arm);
    pen.lineTo(x + arm, y + arm);
    pen.moveTo(x + arm, y - arm);
    pen.lineTo(x - arm, y + arm);
    pen.stroke();
  }

  drawGrid() {
    if (!this.width) return;
    const pen = this.grid.getContext("2d");
    const { scale } = this;
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = `${11.5 * scale}px ${css("--sans")}`;
    pen.fillStyle = css("--dim");
    pen.strokeStyle = css("--hair");
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const steps = this.high / this.low > 300 ? [1] : STEPS;
    for (let decade = Math.floor(Math.log10(this.low)); decade <= Math.log10(this.high); decade += 1) {
      for (const one of steps) {
        const took = one * 10 ** decade;
        if (took < this.low * 0.99 || took > this.high * 1.01) continue;
        const y = Math.round(this.y(took)) + 0.5;
        line(pen, this.left, y, this.right, y);
        pen.fillText(tick(took), this.left - 7 * scale, y);
      }
    }
    pen.textBaseline = "alphabetic";
    const base = this.height - 5 * scale;
    for (let i = 0; i <= 4; i += 1) {
      const x = this.left + ((this.right - this.left) * i) / 4;
      pen.textAlign = i === 4 ? "right" : i === 0 ? "left" : "center";
      pen.fillText(i === 4 ? "now" : `−${Math.round(this.span * (1 - i / 4))} s`, x, base);
    }
    pen.textAlign = "right";
    pen.fillText("refused", this.left - 7 * scale, this.bottom + 16 * scale);
    this.common = this.commonDeadline();
    if (this.common) {
      pen.strokeStyle = css("--bad");
      pen.setLineDash([3 * scale, 3 * scale]);
      const y = Math.round(this.y(this.common)) + 0.5;
      line(pen, this.left, y, this.right, y);
      pen.setLineDash([]);
    }
  }

  /** A deadline that most of the latest requests brought. */
  commonDeadline() {
    const counts = new Map();
    const n = Math.min(200, this.answers.n - this.answers.first);
    for (let k = this.answers.n - n; k < this.answers.n; k += 1) {
      const deadline = this.answers.deadline[k & (this.answers.at.length - 1)];
      if (deadline > 0) counts.set(deadline, (counts.get(deadline) || 0) + 1);
    }
    for (const [deadline, times] of counts) if (times > n / 2) return deadline;
    return null;
  }

  drawSelected() {
    const mark = this.mark || (this.mark = $("scatter").appendChild(h("span", { class: "mark", "aria-hidden": "true" })));
    const row = this.selected === null ? undefined : this.answers.row(this.selected);
    const x = row ? this.x(row.at) / this.scale : -1;
    mark.hidden = !row || x < MARGIN.left;
    if (!mark.hidden) mark.style.transform = `translate(${x}px, ${this.markY(row) / this.scale}px)`;
  }

  markY(row) {
    return row.outcome === "ok" ? this.y(row.seconds) : this.bottom + 15 * this.scale;
  }

  near(event) {
    const box = this.points.getBoundingClientRect();
    const [px, py] = [(event.clientX - box.left) * this.scale, (event.clientY - box.top) * this.scale];
    let best = null;
    let least = (18 * this.scale) ** 2;
    this.answers?.recent(this.edge, (i, k) => {
      const dx = this.x(this.answers.at[i]) - px;
      if (dx * dx > least) return;
      const y = this.answers.outcome[i] === 0 ? this.y(this.answers.seconds[i]) : this.bottom + 15 * this.scale;
      const far = dx * dx + (y - py) ** 2;
      if (far < least) [least, best] = [far, k];
    });
    return best;
  }

  hover(event) {
    const tip = $("tip");
    const k = this.near(event);
    tip.hidden = k === null;
    if (k === null) return;
    const row = this.answers.row(k);
    const due = row.deadline === null ? "" : ` of ${seconds(row.deadline)}`;
    tip.textContent = `${row.endpoint} · length ${row.length} · ${seconds(row.seconds)}${due}${row.outcome === "ok" ? "" : ` · ${row.outcome}`}`;
    const x = this.x(row.at) / this.scale;
    const isRight = x > this.width / this.scale / 2;
    tip.style.transform = `translate(calc(${x + (isRight ? -10 : 10)}px ${isRight ? "- 100%" : ""}), ${Math.max(0, this.markY(row) / this.scale - 28)}px)`;
  }

  walk(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || !this.answers?.n) return;
    event.preventDefault();
    const from = this.selected ?? this.answers.n - 1;
    this.choose(Math.min(Math.max(from + by, this.answers.first), this.answers.n - 1));
  }

  choose(k) {
    if (k === null || k === undefined) return;
    this.selected = k;
    this.drawSelected();
    this.picked(k);
  }
}

function step(value, round) {
  const decade = 10 ** Math.floor(Math.log10(value));
  const one = round === Math.floor ? STEPS.findLast((each) => each * decade <= value) : [...STEPS, 10].find((each) => each * decade >= value);
  return one * decade;
}

function line(pen, x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}

// The answers of one model that arrived lately: columns of numbers in rings, so that 60,000 of them are light.

const SIZE = 1 << 16;
const MASK = SIZE - 1;
const OUTCOMES = { ok: 0, refused: 1, failed: 2, cancelled: 3 };
const NAMES = Object.keys(OUTCOMES);

export class Answers {
  constructor() {
    this.n = 0; // ever
    this.run = null; // of the model: one that was loaded anew counts anew
    this.asked = 0; // the first of this run: the node keeps no earlier ones
    this.missed = 0; // told to others while this page read too slowly
    this.next = 0; // the number that comes next; 0: any
    this.endpoints = []; // names, in order of appearance: their index is their colour
    this.at = new Float64Array(SIZE); // arrival, seconds of the node's clock
    this.number = new Float64Array(SIZE);
    this.seconds = new Float32Array(SIZE);
    this.waited = new Float32Array(SIZE);
    this.deadline = new Float32Array(SIZE); // NaN: none
    this.accuracy = new Float32Array(SIZE); // NaN: unknown
    this.length = new Uint32Array(SIZE);
    this.endpoint = new Uint8Array(SIZE);
    this.outcome = new Uint8Array(SIZE);
    this.late = new Uint8Array(SIZE);
  }

  get first() {
    return Math.max(0, this.n - SIZE);
  }

  endpointOf(name) {
    let i = this.endpoints.indexOf(name);
    if (i < 0) i = this.endpoints.push(name) - 1;
    return Math.min(i, 255);
  }

  add(batch) {
    if (this.run !== batch.run) [this.run, this.asked, this.next] = [batch.run, this.n, 0];
    if (this.next) this.missed += batch.answers[0][0] - this.next;
    this.next = batch.answers.at(-1)[0] + 1;
    for (const [number, at, length, target, outcome, seconds, waited, deadline, met, accuracy] of batch.answers) {
      const i = this.n & MASK;
      this.number[i] = number;
      this.at[i] = at;
      this.length[i] = length;
      this.endpoint[i] = this.endpointOf(target);
      this.outcome[i] = OUTCOMES[outcome] ?? 2;
      this.seconds[i] = seconds;
      this.waited[i] = waited;
      this.deadline[i] = deadline ?? NaN;
      this.late[i] = met === false ? 1 : 0;
      this.accuracy[i] = accuracy ?? NaN;
      this.n += 1;
    }
  }

  /** The k-th answer ever, as an object; undefined where it is not kept. */
  row(k) {
    if (k < this.first || k >= this.n) return undefined;
    const i = k & MASK;
    return {
      k, number: this.number[i], at: this.at[i], length: this.length[i], endpoint: this.endpoints[this.endpoint[i]],
      outcome: NAMES[this.outcome[i]], seconds: this.seconds[i], waited: this.waited[i],
      deadline: Number.isNaN(this.deadline[i]) ? null : this.deadline[i], late: this.late[i] === 1,
      accuracy: Number.isNaN(this.accuracy[i]) ? null : this.accuracy[i],
    };
  }

  /** Call `each(i, k)` for what ended after `since`, latest first; i is the place in the columns. */
  recent(since, each) {
    for (let k = this.n - 1, first = this.first; k >= first; k -= 1) {
      const i = k & MASK;
      if (this.at[i] + this.seconds[i] < since) {
        if (this.at[i] < since - 30) return; // answers come nearly in order of their ends
        continue;
      }
      each(i, k);
    }
  }
}

/** What the answers since `since` were, in all and by endpoint. */
export function summary(answers, since) {
  const found = { all: entry(), by: answers.endpoints.map(entry), refused: 0, failed: 0 };
  answers.recent(since, (i) => {
    if (answers.outcome[i] === OUTCOMES.ok) {
      count(found.all, answers, i);
      count(found.by[answers.endpoint[i]], answers, i);
      return;
    }
    if (answers.outcome[i] === OUTCOMES.cancelled) return;
    found[answers.outcome[i] === OUTCOMES.refused ? "refused" : "failed"] += 1;
    if (!Number.isNaN(answers.deadline[i])) found.all.due += 1; // a refusal keeps no deadline
  });
  for (const one of [found.all, ...found.by]) one.times.sort((a, b) => a - b);
  return found;
}

function entry() {
  return { n: 0, due: 0, inTime: 0, accuracy: 0, rated: 0, times: [], shares: [] };
}

function count(one, answers, i) {
  one.n += 1;
  one.times.push(answers.seconds[i]);
  if (!Number.isNaN(answers.deadline[i])) {
    one.due += 1;
    one.inTime += answers.late[i] ? 0 : 1;
    one.shares.push(answers.seconds[i] / answers.deadline[i]);
  }
  if (!Number.isNaN(answers.accuracy[i])) {
    one.rated += 1;
    one.accuracy += answers.accuracy[i];
  }
}

export const quantile = (sorted, q) => (sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : null);

// The page of a node: follows its events, keeps the latest answers of each model, and shows the chosen one.
import { $, fill, h, keyed, text } from "./dom.js";
import { bytesIn, clock, count, percent, rate, seconds, secondsIn } from "./format.js";
import { Refused, ask, follow, showToken } from "./stream.js";
import { Answers, quantile, summary } from "./answers.js";
import { Scatter } from "./scatter.js";
import { Timeline } from "./timeline.js";
import { Attained, Curves } from "./charts.js";
import { Devices } from "./devices.js";
import { refuseExplanation, showBits, showExplanation, showMemory } from "./panels.js";

const LATEST = 10;
const MINUTE_S = 60;
const SUMMARY_MS = 1000;
const LATEST_MS = 500;
const OUTLOOK_MS = 2000;
const HIDDEN_MS = 15000;
const N_COLORS = 8;

const page = { picture: null, numbers: null, before: null, kept: new Map(), model: null, isPaused: false, isFollowing: true, stop: null, opened: Infinity, shift: Infinity };
const answersOf = (model) => page.kept.get(model) ?? page.kept.set(model, new Answers()).get(model);
const current = () => page.picture?.models.find((one) => one.key === page.model);

/** The name of a model, with its version where several are loaded. */
function labelOf(model) {
  const isAlone = page.picture.models.filter((one) => one.name === model.name).length === 1;
  return isAlone ? model.name : `${model.name} version ${model.version}`;
}

// Colours by endpoint: this device and its cluster first, then upstreams in order of appearance.
function colorOf(name) {
  if (name === "local") return "--c0";
  if (name === "cluster") return "--c1";
  const others = answersOf(page.model).endpoints.concat(page.numbers?.models[page.model]?.devices.filter((one) => one.kind === "upstream").map((one) => one.name) ?? []);
  const at = [...new Set(others.filter((one) => one !== "local" && one !== "cluster"))].sort().indexOf(name);
  return `--c${2 + (Math.max(at, 0) % (N_COLORS - 2))}`;
}

function nameOf(target) {
  if (target === "local" || target === "cluster") return target;
  const device = page.numbers?.models[page.model]?.devices.find((one) => one.name === target);
  return device?.node || target.replace(/^https?:\/\//, "");
}

const scatter = new Scatter((i) => getComputedStyle(document.documentElement).getPropertyValue(colorOf(answersOf(page.model).endpoints[i])).trim(), (k) => pick(k));
const timeline = new Timeline(nameOf);
const curves = new Curves(nameOf, colorOf);
const attained = new Attained(nameOf, colorOf);
const devices = new Devices();

// -- events

function open() {
  page.stop?.();
  page.stop = follow("/v2/pliant/events", {
    opened: () => {
      for (const answers of page.kept.values()) answers.next = 0;
      page.opened = Date.now() / 1e3;
      state("live", "live");
    },
    lost: (why) => state("lost", why),
    refused: (error) => knock(error),
    leaves: () => state("lost", "the node is leaving"),
    picture: (picture) => showPicture(picture),
    numbers: (numbers) => showNumbers(numbers),
    answers: (batches) => batches.forEach((batch) => answersOf(batch.model).add(batch)),
  });
}

function state(kind, words) {
  $("state").className = `state ${kind}`;
  text($("state"), page.isPaused && kind === "live" ? "paused" : words);
}

function showPicture(picture) {
  const isNew = page.picture?.run !== picture.run;
  if (isNew) {
    page.kept.clear();
    page.numbers = null; // else the CPU time of two processes would be compared
  }
  page.picture = picture;
  text($("node"), picture.name);
  document.title = `${picture.name} · pliant`;
  text($("about"), `pliant ${picture.version} · run ${picture.run} · ${picture.shows_texts ? "texts of requests are shown" : "texts of requests are not kept"}`);
  const keys = picture.models.map((one) => one.key);
  $("no-model").hidden = keys.length > 0;
  for (const one of document.querySelectorAll("main > section, main > dl")) one.hidden = !keys.length;
  const chosen = keys.includes(page.model) ? page.model : keys[0] ?? null;
  if ([...$("model").options].map((one) => one.value).join("\n") !== keys.join("\n")) {
    fill($("model"), picture.models.map((one) => h("option", { value: one.key }, labelOf(one))));
  }
  $("model").value = chosen;
  if (isNew || chosen !== page.model) choose(chosen);
}

function choose(model) {
  page.model = model;
  if (model === null) return;
  scatter.selected = null;
  scatter.show(answersOf(model));
  timeline.clear();
  page.isFollowing = true;
  $("follow").setAttribute("aria-pressed", "true");
  $("ask-length").max = current().max_length;
  showAll();
  look();
}

function showNumbers(numbers) {
  page.shift = Math.min(page.shift === Infinity ? Infinity : page.shift + 0.002, Date.now() / 1e3 - numbers.at_s);
  scatter.shift = -page.shift;
  page.before = page.numbers;
  page.numbers = numbers;
  if (numbers.is_draining) state("lost", "the node is leaving");
}

// -- what is shown each second

function showAll() {
  if (!page.numbers || !current()) return;
  const answers = answersOf(page.model);
  // What was answered before the events began, or while they were interrupted, is not known.
  const since = Math.max(scatter.now() - MINUTE_S, page.opened + scatter.shift);
  const found = summary(answers, since);
  const now = page.numbers.models[page.model];
  if (!now) return;
  figures(found, now, Math.max(1, scatter.now() - since));
  legend(answers, found, now);
  attained.show(answers, found);
  const model = current();
  showBits(model.plan, now.shards, now.split);
  showMemory(page.picture.models, model, page.numbers, labelOf);
  devices.show(page.picture.name, now.devices, now.split);
  text($("missed"), answers.missed ? ` ${count(answers.missed)} were not told to this page, which reads too slowly.` : "");
  scatter.rescale();
  $("scatter-empty").hidden = answers.n > 0;
  if (scatter.common !== scatter.commonDeadline()) scatter.drawGrid();
}

function figures(found, now, seen) {
  const { all } = found;
  const total = (outcome) => Object.values(now.requests).reduce((sum, row) => sum + row[outcome], 0);
  const cpu = page.before ? (page.numbers.cpu_s - page.before.cpu_s) / (page.numbers.at_s - page.before.at_s) : null;
  const shown = [
    ["Answered", count(total("ok")), "", "answered"], ["Refused", count(total("refused")), "", "refused"], ["Failed", count(total("failed")), "", "failed"],
    ["Rate", rate(all.n / seen), "/s"], ["Median", ...secondsIn(quantile(all.times, 0.5))], ["95th percentile", ...secondsIn(quantile(all.times, 0.95))],
    ["In time", all.due ? percent(all.inTime / all.due).replace(" %", "") : "–", all.due ? "%" : ""],
    ["Accuracy given", all.rated ? percent(all.accuracy / all.rated).replace(" %", "") : "–", all.rated ? "%" : ""],
    ["Waiting", count(now.n_waiting), "", "waiting"], ["Under way", count(now.n_open), ""],
    ["Processor", cpu === null ? "–" : (cpu * 100).toFixed(0), cpu === null ? "" : "%"], ["Memory", ...bytesIn(page.numbers.rss_bytes)],
  ];
  const list = $("figures");
  shown.forEach(([name, value, unit, key], i) => {
    const place = list.children[i] ?? list.appendChild(h("div", {}, h("dt"), h("dd", key ? { "data-key": key } : {}, h("span"), h("small"))));
    text(place.firstChild, name);
    text(place.lastChild.firstChild, value);
    text(place.lastChild.lastChild, unit);
    place.lastChild.className = (name === "Failed" && total("failed")) || (name === "In time" && all.due && all.inTime / all.due < 0.95) ? "bad" : "";
  });
}

function legend(answers, found, now) {
  const known = [...new Set([...current().endpoints, ...now.devices.filter((one) => one.kind === "upstream").map((one) => one.name), ...answers.endpoints])];
  const parts = known.map((name) => {
    const i = answers.endpoints.indexOf(name);
    const n = i < 0 ? 0 : found.by[i].n;
    return [name, found.all.n ? percent(n / found.all.n, 0) : "–"];
  });
  const key = JSON.stringify(parts.map(([name, share]) => [name, share, nameOf(name), colorOf(name)]));
  if ($("legend").dataset.key === key) return;
  $("legend").dataset.key = key;
  fill($("legend"), parts.map(([name, share]) => h("li", { title: name }, keyed(`var(${colorOf(name)})`, h("span", { class: "name" }, nameOf(name))), h("span", { class: "share" }, share))));
}

function latest() {
  const body = $("latest");
  if (body.matches(":hover") || body.contains(document.activeElement)) return; // rows do not move under a hand
  const answers = page.model === null ? null : answersOf(page.model);
  if (!answers || body.dataset.n === `${page.model} ${answers.n}`) return;
  body.dataset.n = `${page.model} ${answers.n}`;
  const found = [];
  for (let k = answers.n - 1; k >= answers.first && found.length < LATEST; k -= 1) found.push(answers.row(k));
  fill(body, found.map((row) => h("tr", { "data-k": row.k, "aria-current": row.k === scatter.selected ? "true" : null, onclick: () => scatter.choose(row.k) },
    h("td", {}, h("button", { class: "go", type: "button", "aria-label": `Request ${row.number}: show how it was answered` }, clock(row.at + row.seconds))),
    h("td", { title: row.endpoint }, keyed(`var(${colorOf(row.endpoint)})`, nameOf(row.endpoint))),
    h("td", { class: "n" }, String(row.length)),
    h("td", { class: row.late || row.outcome !== "ok" ? "n bad" : "n" }, row.outcome === "ok" ? seconds(row.seconds) : row.outcome),
    h("td", { class: "n" }, row.deadline === null ? "–" : seconds(row.deadline)))));
}

/** The chosen model in a query. */
const asModel = () => ({ model: current().name, version: current().version });

// -- one request

async function pick(k, isOwn = true) {
  const row = answersOf(page.model).row(k);
  if (!row) return;
  if (isOwn) {
    page.isFollowing = false;
    $("follow").setAttribute("aria-pressed", "false");
  }
  for (const one of $("latest").children) one.toggleAttribute("aria-current", Number(one.dataset.k) === k);
  const model = page.model;
  try {
    if (k < answersOf(model).asked) throw new Refused(404, "This model has been loaded anew since: the answer is not kept.");
    const answer = await ask("/v2/pliant/answer", { ...asModel(), number: row.number });
    if (model === page.model) timeline.show(answer);
  } catch (error) {
    if (!(error instanceof Refused)) return;
    if (isOwn) {
      timeline.clear();
      text($("answer-what"), error.message);
    }
  }
}

// -- what is asked every other second

function terms() {
  const number = (id, by) => ($(id).value === "" ? undefined : $(id).valueAsNumber / by);
  return { deadline_s: number("ask-deadline", 1e3), accuracy_floor: number("ask-floor", 100) || undefined };
}

async function look() {
  if (!page.model || page.isPaused || document.hidden) return;
  const model = page.model;
  const asked = terms();
  const words = [asked.deadline_s && `within ${seconds(asked.deadline_s)}`, asked.accuracy_floor && `at ${percent(asked.accuracy_floor)} or more`].filter(Boolean).join(", ");
  const own = current().deadline_s === null ? "no deadline" : `within ${seconds(current().deadline_s)}`;
  try {
    const named = asModel();
    const outlook = await ask("/v2/pliant/outlook", { ...named, ...asked });
    if (model !== page.model) return;
    curves.show(outlook, words || own);
    const found = await ask("/v2/pliant/route", { ...named, length: $("ask-length").value || 0, ...asked });
    if (model === page.model) showExplanation(found, nameOf, colorOf);
  } catch (error) {
    if (error instanceof Refused) refuseExplanation(error.message);
  }
}

// -- doors and buttons

function knock(error) {
  state("lost", "a token is asked for");
  if (error.status === 403) text($("door-why"), error.message);
  if (!$("door").open) $("door").showModal();
}

$("door-form").addEventListener("submit", () => {
  showToken($("token").value);
  $("token").value = "";
  open();
});
$("model").addEventListener("change", (event) => choose(event.target.value));
$("window").addEventListener("change", (event) => {
  scatter.span = Number(event.target.value);
  scatter.reset();
});
$("ask").addEventListener("input", () => {
  clearTimeout(page.asking);
  page.asking = setTimeout(look, 150);
});
$("ask").addEventListener("submit", (event) => event.preventDefault());
$("follow").addEventListener("click", () => {
  page.isFollowing = !page.isFollowing;
  $("follow").setAttribute("aria-pressed", String(page.isFollowing));
});
$("pause").addEventListener("click", pause);
document.addEventListener("keydown", (event) => {
  if (event.key === "p" && !event.target.closest("input, select") && !event.ctrlKey && !event.metaKey && !event.altKey) pause();
});

function pause() {
  page.isPaused = !page.isPaused;
  $("pause").setAttribute("aria-pressed", String(page.isPaused));
  text($("pause"), page.isPaused ? "Go on" : "Pause");
  if ($("state").classList.contains("live")) state("live", "live");
  if (!page.isPaused) scatter.reset();
}

// Nobody looks at a hidden page: the node need not tell it anything.
document.addEventListener("visibilitychange", () => {
  clearTimeout(page.hiding);
  if (document.hidden) page.hiding = setTimeout(() => { page.stop?.(); page.stop = null; }, HIDDEN_MS);
  else if (!page.stop) open();
});

let [second, half, other] = [0, 0, 0];
function frame(time) {
  requestAnimationFrame(frame);
  if (page.isPaused || page.model === null) return;
  scatter.frame(time);
  if (time - half > LATEST_MS) {
    half = time;
    latest();
  }
  if (time - second > SUMMARY_MS) {
    second = time;
    showAll();
  }
  if (time - other > OUTLOOK_MS) {
    other = time;
    const answers = answersOf(page.model);
    page.round ??= Promise.all([look(), page.isFollowing && answers.n ? pick(answers.n - 1, false) : null]).finally(() => (page.round = null));
  }
}
timeline.clear();
open();
requestAnimationFrame(frame);

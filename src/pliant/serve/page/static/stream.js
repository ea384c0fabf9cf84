// What the node sends: server-sent events over fetch, which can show a token where EventSource cannot.

const RETRY_MS = 2000;
const BUSY_MS = 5000;
const FIRST_MS = 30000; // the first event may wait for the session's current run
const QUIET_MS = 5000; // numbers come every second, so that a node is lost after as long without a byte
const ASK_MS = 5000;
let token = null; // in memory only: a reload forgets it

export class Refused extends Error {
  constructor(status, why) {
    super(why);
    this.status = status;
  }
}

export function showToken(value) {
  token = value;
}

async function get(path, signal, kind) {
  const headers = { accept: kind };
  if (token) headers.authorization = `Bearer ${token}`;
  const response = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" });
  if (!response.ok) {
    const said = await response.json().catch(() => ({}));
    throw new Refused(response.status, typeof said.error === "string" ? said.error : `status ${response.status}`);
  }
  return response;
}

/** JSON of a path with a query; undefined values are left out. */
export async function ask(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(given).toString();
  return (await get(search ? `${path}?${search}` : path, AbortSignal.timeout(ASK_MS), "application/json")).json();
}

/** Follow the events until `stop` is called; `on` has a method an event, and `opened`, `lost` and `refused`. */
export function follow(path, on) {
  let abort = new AbortController();
  let timer = 0;
  let quiet = 0;
  let isStopped = false;

  async function run() {
    const mine = (abort = new AbortController());
    const listen = (most) => {
      clearTimeout(quiet);
      quiet = setTimeout(() => mine.abort(), most);
    };
    try {
      listen(FIRST_MS);
      const response = await get(path, mine.signal, "text/event-stream");
      on.opened();
      await read(response.body.getReader(), on, () => listen(QUIET_MS));
      again();
    } catch (error) {
      if (isStopped) return;
      if (!(error instanceof Refused)) again();
      else if (error.status === 401 || error.status === 403) on.refused(error);
      else again(error.message, BUSY_MS);
    }
  }
  function again(why = "no contact", wait = RETRY_MS) {
    clearTimeout(quiet);
    if (isStopped) return;
    on.lost(`${why.replace(/[.]$/, "")}; trying again`);
    timer = setTimeout(run, wait);
  }
  run();
  return () => {
    isStopped = true;
    clearTimeout(timer);
    clearTimeout(quiet);
    abort.abort();
  };
}

/** Calls `heard` for whatever comes after the first event. */
async function read(reader, on, heard) {
  const decoder = new TextDecoder();
  let rest = "";
  let hasBegun = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message";
      let data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data && on[name]) on[name](JSON.parse(data));
      hasBegun ||= data !== "";
    }
    if (hasBegun) heard();
  }
}

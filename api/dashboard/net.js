// The connection to the cluster: one node serves the page's data as a stream. When it fails, or is silent, the page
// moves to another member by itself.

import { setClock } from "./dom.js";

const silence = 3500; // ms without data after which a node counts as failed; the stream says something each second
const patience = 5000; // ms for the answer of a request
const keepEvents = 500;
const keepSamples = 360;
const hiddenLimit = 60_000; // ms after which a page that is not looked at closes its stream
const storageKey = "northstar-token";

// net is what the page knows. view is null until the first data; refused is why a node wants a token.
export const net = {
  origin: location.origin, // of the node that the page talks to
  token: null,
  view: null,
  events: [],
  samples: [],
  lastData: 0,
  lastLeader: 0, // when the data last named a leader
  refused: "",
  failed: "",
  moves: [],
};
try {
  net.token = sessionStorage.getItem(storageKey);
} catch {
  /* storage is off: the token lives in this page only */
}

// eventsAfter returns the events that came after one, newest first; all, if there was none. A new connection brings the
// newest events again: there their times decide if that one is missing.
export function eventsAfter(mark) {
  if (!mark) return net.events;
  const i = net.events.findIndex((e) => e.node === mark.node && e.at === mark.at && e.message === mark.message);
  return i >= 0 ? net.events.slice(0, i) : net.events.filter((e) => Date.parse(e.at) > Date.parse(mark.at));
}

const listeners = new Set();
export const onChange = (f) => listeners.add(f);
const changed = () => listeners.forEach((f) => f());
export const redraw = changed;

// reload makes the shown page load its data again.
export const reload = () => document.dispatchEvent(new Event("northstar:reload"));

export const caller = () => net.view?.caller ?? { name: "", role: "" };
const ranks = { observer: 1, client: 2, operator: 3 };
export const may = (role) => (ranks[caller().role] ?? 0) >= ranks[role];
export const isLeaderless = () => net.view?.cluster.leader_id === "";
export const isStale = () => net.lastData > 0 && Date.now() - net.lastData > silence;

// useToken begins to use a token; null forgets it.
export function useToken(token, keep) {
  net.token = token;
  net.view = null;
  net.events = [];
  net.refused = "";
  try {
    if (token && keep) sessionStorage.setItem(storageKey, token);
    else sessionStorage.removeItem(storageKey);
  } catch {
    /* as above */
  }
  changed();
  restart();
}

// Failure is what a call ended with. status is 0 where no answer came.
export class Failure extends Error {
  constructor(message, status, problem) {
    super(message);
    this.status = status;
    this.problem = problem;
  }
}

function request(origin, path, options, signal) {
  const headers = { ...options.headers };
  if (net.token) headers.Authorization = `Bearer ${net.token}`;
  if (options.json !== undefined) headers["Content-Type"] = "application/json";
  return fetch(origin + path, {
    method: options.method ?? "GET",
    headers,
    signal,
    cache: "no-store",
    body: options.json !== undefined ? JSON.stringify(options.json) : options.body,
    credentials: origin === location.origin ? "same-origin" : "include",
  });
}

async function failure(answer) {
  let problem = null;
  try {
    problem = await answer.json();
  } catch {
    /* not a problem document */
  }
  return new Failure(problem?.detail || `${answer.status} ${answer.statusText}`, answer.status, problem);
}

// call makes a call and returns its response. A call that changes something is sent once: without an answer its
// outcome is unknown.
export async function call(path, options = {}) {
  let answer;
  const writes = options.method && options.method !== "GET";
  try {
    answer = await request(net.origin, path, options, AbortSignal.timeout(options.timeout ?? patience));
  } catch (err) {
    throw new Failure(
      writes
        ? `No answer came from ${net.origin}. The outcome is unknown: it may have been done or not. Look at the events and the audit log before you try again.`
        : `No answer came from ${net.origin}.`,
      0,
      null,
      err,
    );
  }
  if (!answer.ok) throw await failure(answer);
  return answer;
}

export const get = async (path) => (await call(path)).json();

// list gets all pages of a list, of at most a thousand items.
export async function list(path) {
  const all = [];
  for (let next = ""; ; ) {
    const page = await get(path + (next ? `${path.includes("?") ? "&" : "?"}after=${encodeURIComponent(next)}` : ""));
    all.push(...page.items);
    next = page.next;
    if (!next || all.length >= 1000) return all;
  }
}

// readFrom adds how fresh an answer must be: without a leader only old answers are there.
export function readFrom(path) {
  if (net.view?.cluster.leader_id) return path;
  return `${path}${path.includes("?") ? "&" : "?"}consistency=stale`;
}

let current = null; // AbortController of the open stream
let restarts = 0; // of the stream, by a new token
function restart() {
  restarts++;
  current?.abort();
  wake();
}

let wake = () => {};
const pause = (ms) =>
  new Promise((done) => {
    const timer = setTimeout(done, ms);
    wake = () => {
      clearTimeout(timer);
      done();
    };
  });

let hiddenSince = 0;
document.addEventListener("visibilitychange", () => {
  hiddenSince = document.hidden ? Date.now() : 0;
  if (!document.hidden) wake();
});

// origins lists the nodes to try: the present one first, dead ones last, and the one that served the page.
function origins() {
  const others = (net.view?.cluster.members ?? [])
    .filter((m) => m.http_address)
    .sort((a, b) => (a.lifecycle === "dead") - (b.lifecycle === "dead"))
    .map((m) => `${location.protocol}//${m.http_address}`);
  return [...new Set([net.origin, ...others, location.origin])];
}

// membersElsewhere returns the addresses of other members' pages if browsers do not let this page use them: it was opened
// under a name that no member has, such as that of a load balancer.
export function membersElsewhere() {
  const all = (net.view?.cluster.members ?? []).map((m) => m.http_address).filter(Boolean);
  const own = location.host.replace(/^localhost:/, "127.0.0.1:");
  return all.includes(own) || all.includes(location.host) ? [] : all.map((a) => `${location.protocol}//${a}/`);
}

let answered = ""; // what the last node said that did not serve the page; "": none answered

// run follows the stream of one node after the other.
export async function run() {
  for (;;) {
    let served = false;
    answered = "";
    const tried = origins();
    for (const origin of tried) {
      served = await follow(origin);
      if (served) break; // begin with this node again
    }
    if (!served) {
      const all = tried.map((o) => o.replace(/^https?:\/\//, "")).join(", ");
      net.failed = answered ? `No node serves this page (tried ${all}): ${answered}.` : `No node answers (tried ${all}).`;
      changed();
    }
    await pause(net.refused || document.hidden ? 60_000 : 500);
  }
}

// follow follows the stream of a node until it ends, and returns false if another node is to be tried next.
async function follow(origin) {
  if (document.hidden && Date.now() - hiddenSince > hiddenLimit) return true;
  const control = (current = new AbortController());
  const began = restarts;
  let watchdog = setTimeout(() => control.abort(), silence);
  try {
    const answer = await request(origin, "/dashboard/feed", {}, control.signal);
    if (!answer.ok) {
      const why = await failure(answer);
      answered = why.message;
      if (![401, 403, 429].includes(why.status)) return false;
      Object.assign(net, { refused: why.message, failed: "", view: null, origin });
      return true;
    }
    if (origin !== net.origin) net.moves.push({ at: Date.now(), from: net.origin, to: origin });
    Object.assign(net, { origin, refused: "", failed: "", events: [], samples: [] });
    for await (const { event, data } of events(answer.body)) {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => control.abort(), silence);
      if (event === "moving") return false;
      if (event === "error") return true;
      take(event, data);
      if (document.hidden && Date.now() - hiddenSince > hiddenLimit) return true;
    }
    return false;
  } catch {
    return began !== restarts;
  } finally {
    clearTimeout(watchdog);
    control.abort();
    changed();
  }
}

const alike = (a, b) => Object.keys(a).every((name) => name === "at" || a[name] === b[name]);

function viewed(view) {
  net.view = view;
  setClock(view.at);
  if (!isLeaderless()) net.lastLeader = Date.now();
}

// take takes what the stream brings. While nothing changes, that is that the view still holds, and samples of no news.
function take(event, text) {
  const old = isStale();
  net.lastData = Date.now();
  if (event === "same") {
    if (net.view) viewed({ ...net.view, at: JSON.parse(text).at });
    if (!old) return;
  } else if (event === "view") {
    viewed(JSON.parse(text));
  } else if (event === "sample") {
    net.samples.push(JSON.parse(text));
    net.samples.splice(0, net.samples.length - keepSamples);
    if (net.samples.length > 2 && alike(...net.samples.slice(-2))) return; // a curve goes on as it was
  } else if (event === "entry") {
    net.events.unshift(JSON.parse(text));
    net.events.length = Math.min(net.events.length, keepEvents);
  }
  changed();
}

// events reads server-sent events.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      let event = "";
      let data = "";
      for (const line of rest.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) data = line.slice(6);
      }
      if (event) yield { event, data };
    }
  }
}

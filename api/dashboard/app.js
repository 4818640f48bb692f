// The dashboard's first page: it asks this node once a second what it knows, and
// shows it. Everything from the network is written as text, never as markup.
"use strict";

const interval = 1000; // ms between questions
const patience = 3000; // ms for an answer
const keep = 100; // events shown

const $ = (id) => document.getElementById(id);
const text = (id, value) => {
  const node = $(id);
  if (node.textContent !== String(value)) node.textContent = value;
};

function element(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(patience) });
  const body = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.detail || answer.statusText), { status: answer.status });
  return body;
}

// ago says how long something is past, in the unit that fits.
function ago(ms) {
  if (ms === null || ms === undefined) return "never";
  if (ms < 1000) return `${ms} ms`;
  if (ms < 90_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 5_400_000) return `${Math.round(ms / 60_000)} min`;
  return `${Math.round(ms / 3_600_000)} h`;
}

const number = new Intl.NumberFormat("en");

function tile(id, mood) {
  $(id).className = `tile ${mood}`;
}

function showCluster(c) {
  text("cluster-name", c.cluster_name);
  document.title = `${c.leader_id || "no leader"} · ${c.cluster_name} · NorthStar`;
  const leader = c.members.find((m) => m.id === c.leader_id);
  text("leader", c.leader_id || "none");
  text("leader-note", leader ? leader.http_address || leader.raft_address : "writes wait for an election");
  tile("tile-leader", c.leader_id ? "good" : "bad");
  text("term", number.format(c.term));
  text("term-note", c.auto_failover ? "automatic failover is on" : "automatic failover is paused");
  const q = c.quorum;
  const holds = q.healthy >= q.needed && q.voters > 0;
  text("quorum", `${q.healthy} of ${q.voters}`);
  text("quorum-note", !holds ? `lost: ${q.needed} healthy voters are needed`
    : q.tolerates === 0 ? "at risk: no further voter may fail"
    : `${q.tolerates} more may fail`);
  tile("tile-quorum", !holds ? "bad" : q.tolerates === 0 && q.voters > 1 ? "warn" : "good");
  text("revision", number.format(c.revision));
  text("revision-note", `generation ${c.generation}`);
  const id = c.cluster_id ? `cluster ${c.cluster_id}` : "the cluster has no ID yet";
  text("view", `As node ${c.observed_by} sees it · ${id}`);
  $("rows").replaceChildren(...c.members.map(row));
}

function cell(label, className, ...children) {
  const td = element("td", className, ...children);
  td.dataset.label = label;
  return td;
}

function row(m) {
  const name = element("th", "", m.id, element("span", "sub", m.suffrage === "voter" ? "voter" : "non-voter"));
  name.scope = "row";
  const state = element("span", `pill ${m.state === "leader" ? "lead" : m.state === "unknown" ? "bad" : ""}`, m.state);
  const health = element("td", "reason", element("span", `pill ${m.healthy ? "good" : m.lifecycle === "joining" ? "warn" : "bad"}`,
    m.healthy ? m.lifecycle : m.lifecycle === "active" ? "unhealthy" : m.lifecycle));
  health.dataset.label = "Health";
  if (m.reasons.length) health.append(element("span", "sub", m.reasons.join("; ")));
  return element("tr", "", name,
    cell("State", "", state),
    health,
    cell("Lag", "num", number.format(m.lag_entries)),
    cell("Last contact", "num", m.state === "leader" ? "–" : ago(m.last_contact_ms)),
    cell("Priority", "num", m.eligible ? String(m.priority) : `${m.priority} (never leads)`),
    cell("Zone", "", m.zone || "–"),
    cell("Address", "", m.http_address || m.raft_address),
    cell("Version", "", m.version || "–"));
}

let since = "";

// showEvents asks for what is new. A restarted node has a new journal, which
// answers 410 to a place in the old one.
async function showEvents() {
  let page;
  try {
    page = await ask("/v1/events?limit=100" + (since ? "&since=" + encodeURIComponent(since) : ""));
  } catch (err) {
    if (err.status === 410) {
      since = "";
      $("events").replaceChildren();
      return;
    }
    if (err.status === 401 || err.status === 403) {
      text("events-note", "requires a token");
      $("events-note").hidden = false;
      return;
    }
    throw err;
  }
  const first = since === "";
  since = page.next;
  for (const e of page.items) {
    const at = element("time", "", new Date(e.at).toLocaleTimeString([], { hour12: false }));
    at.dateTime = e.at;
    at.title = e.at;
    $("events").prepend(element("li", first ? "" : "new", at, element("span", "type", e.type), element("span", "message", e.message)));
  }
  while ($("events").children.length > keep) $("events").lastChild.remove();
  text("events-note", "nothing yet");
  $("events-note").hidden = $("events").children.length > 0;
}

// showClaims shows what the split-brain detector of this node compares.
async function showClaims() {
  let r;
  try {
    r = await ask("/admin/splitbrain");
  } catch (err) {
    if (err.status !== 401 && err.status !== 403 && err.status !== 503) throw err;
    text("verdict", "not shown");
    $("verdict").className = "pill";
    $("findings").replaceChildren();
    $("claims-table").hidden = true;
    text("claims-note", err.status === 503 ? err.message : "requires the operator role");
    return;
  }
  text("verdict", r.verdict.replace("_", " "));
  $("verdict").className = `pill ${r.verdict === "ok" ? "good" : r.verdict === "unreachable" ? "warn" : "bad"}`;
  $("findings").replaceChildren(...r.findings.map((f) => element("li", "", f.detail, f.refusing ? "; this node serves nobody because of it" : "")));
  const now = Date.parse(r.checked_at);
  $("claims").replaceChildren(...r.claims.map((c) => {
    const name = element("th", "", c.node_id);
    name.scope = "row";
    return element("tr", "", name,
      cell("Said", "", { self: "by itself", peer: "to this node", http: "at its HTTP address" }[c.source] || c.source),
      cell("Leads", "", c.error || !c.term ? "–" : element("span", `pill ${c.leads ? "lead" : ""}`, c.leads ? "yes" : "no")),
      cell("Term", "num", c.term ? number.format(c.term) : "–"),
      cell("Leader", "", c.error ? element("span", "sub", c.error) : c.leader_id || "–"),
      cell("Cluster", "", c.cluster_id ? `${c.cluster_id.slice(0, 8)}… generation ${c.generation}` : "–"),
      cell("Age", "num", ago(Math.max(0, now - Date.parse(c.at)))),
      cell("Address", "", c.address || "–"));
  }));
  $("claims-table").hidden = false;
  text("claims-note", "what each member says of itself and the leader, compared once a second");
}

let lastAnswer = 0;

function connection(className, words) {
  $("connection").className = `pill ${className}`;
  text("connection", words);
}

async function turn() {
  try {
    const [c, s] = await Promise.all([ask("/v1/cluster"), ask("/status")]);
    lastAnswer = Date.now();
    showCluster(c);
    text("node", `This is node ${s.node_id}, ${s.version}, up since ${new Date(s.started_at).toLocaleString()}`);
    if (s.warnings.length || s.lifecycle !== "active") connection("warn", s.warnings[0] || `node ${s.node_id} is ${s.lifecycle}`);
    else connection("good", `live from ${s.node_id}`);
    document.body.classList.remove("stale");
    $("offline").hidden = true;
    await Promise.all([showClaims(), showEvents()]);
  } catch (err) {
    connection("bad", "not connected");
    document.body.classList.add("stale");
    $("offline").hidden = false;
    text("offline", lastAnswer === 0
      ? "This node does not answer. Trying again every second."
      : `This node has not answered for ${ago(Date.now() - lastAnswer)}. What is below is old; trying again every second.`);
  }
}

// The loop sleeps between turns, and is woken when the page is looked at again.
let wake = () => {};
document.addEventListener("visibilitychange", () => wake());

async function run() {
  for (;;) {
    const start = Date.now();
    if (!document.hidden) await turn();
    await new Promise((done) => {
      const timer = setTimeout(done, Math.max(0, interval - (Date.now() - start)));
      wake = () => {
        clearTimeout(timer);
        done();
      };
    });
  }
}

run();

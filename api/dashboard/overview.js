// The overview: is the cluster well, who leads, and what each member does.

import { age, count, h, note, pill, plural, section, size, span, table } from "./dom.js";
import { line } from "./events.js";
import { graphs } from "./graphs.js";
import { may, net } from "./net.js";
import { clusterActions, memberActions } from "./operate.js";
import * as words from "./words.js";

export const overview = {
  title: "Overview",
  show() {
    const { view } = net;
    const c = view.cluster;
    const lost = c.quorum.healthy < c.quorum.needed && !c.leader_id;
    return [
      h("section", { class: "hero", "aria-label": "The cluster in words" }, hero(words.quorum(c)), leader(view)),
      lost && operate(view),
      section(
        "Members",
        votes(c),
        h(
          "div",
          { class: "members" },
          c.members.map((m) => member(view, m)),
        ),
        words.leftOut(c) && h("p", { class: "banner warn" }, words.leftOut(c)),
        note(`As node ${c.observed_by} sees them. A member that is not heard from for 10 s counts as dead.`),
      ),
      graphs(net.samples, view.node_id),
      section(
        "Latest events",
        h("ol", { class: "events" }, net.events.slice(0, 6).map(line)),
        h("p", {}, h("a", { href: "#/events" }, "All events")),
      ),
      numbers(c),
      !lost && operate(view),
    ];
  },
};

const operate = (view) =>
  may("operator") &&
  section(
    "Operate",
    h("div", { class: "actions" }, clusterActions(view)),
    note("Each action that changes something first shows what it would do, and does nothing before you have confirmed it."),
  );

const hero = (q) =>
  h(
    "div",
    { class: `tile ${q.mood}` },
    h("h2", {}, "Quorum"),
    h("p", { class: "big", id: "quorum" }, q.big),
    note(q.small),
  );

function leader(view) {
  const c = view.cluster;
  if (!c.leader_id) {
    return h(
      "div",
      { class: "tile bad" },
      h("h2", {}, "Leader"),
      h("p", { class: "big", id: "leader" }, "No leader"),
      note(
        c.quorum.healthy < c.quorum.needed
          ? "No node can be elected until the quorum is back."
          : "Writes wait for an election.",
      ),
    );
  }
  const m = c.members.find((one) => one.id === c.leader_id);
  const won = net.events.find((e) => e.type === "election" && e.term === c.term && e.fields?.result === "won");
  return h(
    "div",
    { class: "tile good" },
    h("h2", {}, "Leader"),
    h("p", { class: "big", id: "leader" }, `${c.leader_id} leads`),
    note(
      `in term ${count(c.term)}${won ? `, for ${age(won.at)}` : ""}, at ${m?.http_address || m?.raft_address || "an unknown address"}. `,
      h("a", { href: "#/elections" }, "Why?"),
    ),
  );
}

// votes shows the voters and how many a majority needs.
function votes(c) {
  const voters = c.members.filter((m) => m.suffrage === "voter");
  return h(
    "p",
    { class: "votes" },
    "Votes: ",
    voters.map((m) => h("span", { class: `vote ${m.healthy ? "good" : "bad"}` }, `${m.id} ${m.healthy ? "✓" : "✗"}`)),
    ` ${c.quorum.needed} of ${c.quorum.voters} make a majority.`,
  );
}

function member(view, m) {
  const st = view.nodes.find((n) => n.node_id === m.id);
  const leads = m.state === "leader";
  const [mood, health] = m.healthy
    ? ["good", m.lifecycle]
    : m.lifecycle === "joining"
      ? ["warn", "joining"]
      : ["bad", m.lifecycle === "active" ? "unhealthy" : m.lifecycle];
  const facts = [
    ["Lag", plainLag(m)],
    [
      "Last contact",
      leads
        ? "is the leader"
        : m.last_contact_ms === null
          ? "none yet"
          : m.last_contact_ms < 1000
            ? "just now"
            : `${span(m.last_contact_ms)} ago`,
    ],
    [
      "Disk",
      !st
        ? "unknown"
        : st.disk.stalled
          ? "stalled"
          : st.disk.read_only
            ? "read-only"
            : st.disk.fsync_p99_ms
              ? `99 % within ${span(st.disk.fsync_p99_ms)}`
              : "idle",
    ],
    ["Priority", m.eligible && m.priority > 0 ? count(m.priority) : `${m.priority}, does not lead`],
    ["Zone", m.zone || "–"],
    ["Version", m.version || "–"],
    ["Address", m.http_address || m.raft_address],
    ["Up for", st ? age(st.started_at) : "–"],
    [
      "Silence threshold",
      leads ? "is the leader" : st?.silence ? words.silence(st.silence) : "–",
      "wide",
    ],
  ];
  return h(
    "article",
    { class: `member ${mood} ${leads ? "leads" : ""}`, "data-key": m.id, "aria-label": `Member ${m.id}` },
    h(
      "h3",
      {},
      m.id,
      " ",
      leads ? pill("lead", "leader") : pill(m.state === "unknown" ? "bad" : "", m.state),
      " ",
      pill(mood === "good" && m.lifecycle === "draining" ? "warn" : mood, health),
    ),
    h("p", { class: "muted" }, m.suffrage === "voter" ? "has a vote" : "has no vote", disagrees(view, st)),
    m.reasons.length > 0 && h("p", { class: "reason" }, m.reasons.join("; ")),
    m.suffrage === "voter" &&
      st?.election_obstacle &&
      note(`It starts no election by itself: ${st.election_obstacle}.`),
    h(
      "dl",
      {},
      facts.map(([name, value, cls]) => h("div", { class: cls }, h("dt", {}, name), h("dd", {}, value))),
    ),
    may("operator") && h("div", { class: "actions" }, memberActions(view, m)),
  );
}

const plainLag = (m) => (m.lag_entries === 0 ? "none" : plural(m.lag_entries, "entry", "entries"));

// disagrees names a node that follows another leader than the one shown.
function disagrees(view, st) {
  if (!st || st.leader_id === view.cluster.leader_id) return "";
  return h("strong", {}, st.leader_id ? `; follows ${st.leader_id}` : "; knows no leader");
}

function numbers(c) {
  const s = c.state;
  const rows = [
    ["Term", count(c.term)],
    ["Revision", count(c.revision)],
    ["Keys", count(s.keys)],
    ["Sessions", count(s.sessions)],
    ["State", s.bytes_limit ? `${size(s.bytes)} of ${size(s.bytes_limit)}` : size(s.bytes)],
    ["Automatic failover", c.auto_failover ? "on" : "paused"],
  ];
  return section(
    "Numbers",
    table(
      "Numbers",
      [
        ["Name", ""],
        ["Value", "num"],
      ],
      rows.map(([name, value]) => ({ key: name, cells: [name, value] })),
    ),
  );
}

// Sentences: what the data means, for someone who sees a cluster for the first time.

import { count, moment, now, plural, size, span } from "./dom.js";

// quorum says in words how many voters are healthy, and how many may still fail.
export function quorum(c) {
  const q = c.quorum;
  const healthy = `${q.healthy} of ${q.voters} voters healthy`;
  if (q.voters === 0) return { mood: "bad", big: "No voters", small: "This cluster has no configuration yet." };
  if (q.healthy < q.needed && c.leader_id) {
    const down = c.members.filter((m) => m.suffrage === "voter" && !m.healthy);
    const first = (reason) => down.filter((m) => m.reasons[0]?.startsWith(reason)).length; // silence is said first
    // Those that a new leader has not heard from yet may still be healthy.
    if (first("disk is ") > 0 && q.healthy + first("not heard from since") < q.needed) {
      return {
        mood: "bad",
        big: `${healthy}, no write is possible`,
        small: `Nothing can be written: ${down.map((m) => `${m.id}: ${m.reasons.join(", ")}`).join("; ")}.`,
      };
    }
    return {
      mood: "warn",
      big: `${healthy} so far`,
      small: `Node ${c.leader_id} has just been elected and not heard from the others yet, or is about to step down.`,
    };
  }
  if (q.healthy < q.needed) {
    return {
      mood: "bad",
      big: "Quorum lost",
      small: `${healthy}; ${q.needed} are needed to elect a leader and to write.`,
    };
  }
  if (q.tolerates === 0) {
    return q.voters === 1
      ? { mood: "warn", big: "1 voter, none may fail", small: "A cluster of one stops when its node stops." }
      : { mood: "warn", big: `${healthy}, none may fail`, small: "One more failure stops all writes." };
  }
  const may = q.tolerates === 1 ? "one may fail" : `${q.tolerates} may fail`;
  return {
    mood: q.healthy < q.voters ? "warn" : "good",
    big: `${healthy}, ${may}`,
    small: `A majority is ${q.needed} of ${q.voters}.`,
  };
}

const momentary = 1000; // ms; every planned transfer leaves the cluster without a leader for a moment

// banners lists what an operator must know now, the gravest first.
export function banners(view, conditions) {
  const out = [];
  const add = (mood, text) => out.push({ mood, text });
  if (conditions.failed)
    add("bad", `${conditions.failed} Trying again every second.${view ? " What is below is old." : ""}`);
  else if (conditions.stale) add("bad", "No data has come for some seconds. What is below is old.");
  if (!view) return out;
  const c = view.cluster;
  const split = view.split_brain;
  if (split && ["split_brain", "stale_leader", "foreign_cluster"].includes(split.verdict)) {
    add("bad", `${verdicts[split.verdict]} ${split.findings.map((f) => f.detail).join("; ")}`);
  }
  if (c.quorum.voters > 0 && c.quorum.healthy < c.quorum.needed && !c.leader_id) {
    add(
      "bad",
      `Quorum lost: only ${c.quorum.healthy} of ${c.quorum.voters} voters are healthy, ${c.quorum.needed} are needed. Nothing can be written until enough nodes come back. If they never will, an operator can recover the cluster from the nodes that are left.`,
    );
  } else if (!c.leader_id && conditions.ledAgo > momentary) {
    add("bad", "No leader: writes wait for an election.");
  }
  for (const n of view.nodes) {
    if (n.disk.read_only)
      add("bad", `Node ${n.node_id} is read-only: its disk is nearly full. It recovers by itself when space is freed.`);
    if (n.disk.stalled) add("bad", `The disk of node ${n.node_id} does not answer.`);
    if (n.lifecycle === "dead")
      add("bad", `Node ${n.node_id} is refused by the cluster: ${n.warnings[0] ?? "see its log"}`);
  }
  const limit = c.state.bytes_limit;
  if (limit > 0 && c.state.bytes > (limit * 15) / 16) {
    add(
      "bad",
      `The state is full: ${size(c.state.bytes)} of ${size(limit)}. What grows it is refused until something is deleted.`,
    );
  } else if (limit > 0 && c.state.bytes > limit * 0.8) {
    add("warn", `The state is at ${Math.round((100 * c.state.bytes) / limit)} % of its limit of ${size(limit)}.`);
  }
  if (!c.auto_failover) {
    const a = view.auto_failover;
    const until = a?.paused_until ? ` until ${moment(a.paused_until)}` : "";
    const who = a?.operator ? ` by ${a.operator}${a.reason ? ` (${a.reason})` : ""}` : "";
    add("warn", `Automatic failover is paused${until}${who}: a leader that fails is not replaced.`);
  }
  if (c.observed_by !== c.leader_id && c.leader_id) {
    add(
      "warn",
      `The leader ${c.leader_id} does not answer node ${view.node_id}: members are shown as that node sees them.`,
    );
  }
  for (const [text, ids] of warnings(view.nodes)) {
    add("warn", `${ids.length === 1 ? "Node" : "Nodes"} ${ids.join(", ")}: ${text}`);
  }
  return out;
}

// warnings lists the warnings of the nodes, the same one of several nodes once.
function warnings(nodes) {
  const by = new Map();
  for (const n of nodes.filter((one) => one.lifecycle !== "dead")) {
    for (const w of n.warnings) by.set(w, [...(by.get(w) ?? []), n.node_id]);
  }
  return by;
}

export const verdicts = {
  ok: "All nodes agree on one leader.",
  unreachable: "Some nodes cannot be asked, or take no part because they missed a recovery of this cluster.",
  stale_leader: "A node still believes that it leads, although a later leader was elected. It cannot commit anything.",
  foreign_cluster: "A node of another cluster answers at a member's address.",
  split_brain:
    "Two nodes claim to lead, the cluster was recovered twice, or two processes use one node's ID. The nodes concerned serve only stale reads and watches.",
};

// silence says how long the leader may be silent for a node. How that is measured changes all the time.
export function silence(s) {
  const by = { configured: ", as configured", learning: " for now, until it is measured", measured: ", measured" };
  return `${span(s.threshold_ms)}${by[s.source] ?? `: ${s.reason}`}`;
}

// leftOut says what to do about the members that a recovery has left without a vote; "" if there are none.
export function leftOut(c) {
  const ids = c.members.filter((m) => m.suffrage !== "voter" && !m.healthy).map((m) => m.id);
  if (c.generation < 2 || ids.length === 0) return "";
  return `This cluster was recovered, without ${ids.join(", ")}. To take a node in again, empty its data directory, start it, and re-admit it here. Otherwise remove it.`;
}

// claim says in one sentence what a node says of itself and the leader.
export function claim(c) {
  if (c.error) return `could not be asked: ${c.error}`;
  if (!c.term) return "says nothing of a leader yet";
  if (c.leads) return `says that it leads, in term ${count(c.term)}`;
  if (c.leader_id) return `follows ${c.leader_id}, in term ${count(c.term)}`;
  return `knows no leader, in term ${count(c.term)}`;
}

export const sources = {
  self: "from the node itself",
  peer: "heard on the connection between the nodes, which counts",
  http: "read at its HTTP address, for comparison only",
};

const because = {
  startup: "the node knew no leader since its start",
  timeout: "no leader was heard for too long",
  connection_lost: "the leader's connection broke or it fell silent, and the survivors agreed that it was dead",
  transfer: "leadership was transferred as planned",
  manual: "an operator requested it",
  emergency: "an operator requested an emergency failover",
  priority: "a better placed node took leadership over",
  disk_stall: "the leader's disk stopped answering",
};
// preVotes reports whether an election got no further than to the question who would vote.
export const preVotes = (e) => e.votes.length > 0 && e.votes.every((v) => v.pre);
export const planned = (e) => e.trigger === "transfer" || e.trigger === "priority";

// election explains an election in full sentences.
export function election(e) {
  const voters = e.votes.length;
  const pre = preVotes(e);
  const granted = e.votes.filter((v) => v.granted).length;
  const out = [`The election of term ${count(e.term)} began because ${because[e.trigger] ?? `of ${e.trigger}`}.`];
  if (e.operator) out.push(`The operator ${e.operator} asked for it${e.reason ? `: ${e.reason}.` : "."}`);
  else if (e.reason) out.push(`In the words of the candidate: ${e.reason}.`);
  const votes = voters && !pre ? ` with ${granted} of ${plural(voters, "recorded vote")}` : "";
  out.push(
    e.result === "won"
      ? `Node ${e.candidate_id} won${votes} after ${span(e.duration_ms)}.`
      : `Node ${e.candidate_id} did not win${votes ? `: ${granted} of ${plural(voters, "recorded vote")} granted` : ""}.`,
  );
  if (pre) {
    out.push(
      `It asked whether the others would vote for it: ${granted} of ${plural(voters, "voter")} would. This pre-vote binds no voter. No answer to a vote is recorded.`,
    );
  }
  if (e.result === "won" && e.trigger === "startup") {
    out.push(
      `It had heard no leader since its start, ${span(e.leaderless_ms)} before. How long there was none before that is not known.`,
    );
  } else if (e.result === "won") {
    out.push(
      e.leaderless_ms > 0
        ? `The cluster had no leader for ${span(e.leaderless_ms)}.`
        : "The cluster was at no time without a leader.",
    );
  }
  if (e.needless === "late")
    out.push("It was needless: the old leader was heard again. All nodes tolerate longer silences for a time.");
  if (e.needless === "stopped") out.push("It was needless in the end: the old leader had only stopped for a while.");
  return out;
}

// steps names the phases of a failover, each from the one before.
export function steps(fields) {
  const names = [
    ["confirmed_us", "the leader's process was confirmed dead or silent"],
    ["agreed_us", "a majority agreed, and this node's turn came"],
    ["stood_us", "the election started"],
    ["elected_us", "a majority voted for the candidate"],
    ["serving_us", "the new leader served requests"],
  ];
  let before = 0;
  return names
    .filter(([name]) => fields?.[name] !== undefined)
    .map(([name, text]) => {
      const at = fields[name] / 1000;
      const took = at - before;
      before = at;
      return { text, at, took };
    });
}

export const causes = {
  expired: "its session was not renewed in time",
  disconnected: "its connection broke",
  session_ended: "its session was ended",
  resigned: "it resigned",
  evicted: "an operator evicted it",
  transferred: "an operator handed the role over",
  restored: "a backup was restored",
  recovered: "the cluster was recovered",
};

// flapping reports whether a role changed hands too often of late.
export function flapping(tenures) {
  return tenures.filter((t) => now() - Date.parse(t.acquired_at) < 600_000).length >= 5;
}

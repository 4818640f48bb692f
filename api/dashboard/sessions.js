// Sessions: whose they are, what they hold, and how long they live without a renewal.

import { open } from "./actions.js";
import { button, h, note, pill, plural, section, since, span, table } from "./dom.js";
import { caller, list, may, net, readFrom } from "./net.js";

let items = null;

export const sessions = {
  title: "Sessions",
  ticks: 5000,
  async load() {
    items = await list(readFrom("/v1/sessions"));
  },
  show() {
    if (!items) return [note(sessions.failed || "Loading…")];
    const groups = Map.groupBy(items, (s) => s.identity || "unknown");
    return [
      section(
        "Sessions",
        note(
          "A session is a client's sign of life. When it ends, the roles, keys and application nodes that it holds are freed.",
        ),
        sessions.failed && h("p", { class: "refusal" }, sessions.failed),
        items.length === 0 && note("There are no sessions."),
      ),
      [...groups].sort().map(([identity, own]) => group(identity, own)),
    ];
  },
};

const mine = (s) => may("operator") || (may("client") && s.identity === `${caller().role} ${caller().name}`);

function group(identity, own) {
  const live = net.view.cluster.leader_id !== "";
  return section(
    `${identity}: ${plural(own.length, "session")}`,
    table(
      `Sessions of ${identity}`,
      [
        ["Session", ""],
        ["Holds", ""],
        ["Lives for", "num"],
        ["Ends in", "num"],
        ["Made", "num"],
        ["", ""],
      ],
      own.map((s) => ({
        key: s.session_id,
        cells: [
          [s.name, s.name !== s.session_id && h("span", { class: "sub" }, s.session_id)],
          holds(s),
          span(s.ttl_ms),
          live ? span(s.remaining_ms) : "–",
          `${since(s.created_at)} ago`,
          mine(s) ? button("End…", () => end(s), "danger") : "–",
        ],
      })),
    ),
    may("operator") &&
      own.length > 1 &&
      identity !== "unknown" &&
      h(
        "div",
        { class: "actions" },
        button(`End all of ${identity}…`, () => endAll(identity), "danger"),
      ),
  );
}

function holds(s) {
  const parts = s.roles.map((r) => h("a", { href: `#/roles/${encodeURIComponent(r)}` }, pill("lead", r)));
  if (s.keys > 0) parts.push(` ${plural(s.keys, "key")}`);
  return parts.length > 0 ? parts : "nothing";
}

// planOf makes a plan of the answer to a dry run.
function planOf(answer) {
  const ids = answer.session_ids ?? [answer.session_id];
  const roles = answer.roles ?? [];
  const keys = answer.keys ?? 0;
  const freed = roles.length > 0 ? `the roles ${roles.join(", ")} become vacant` : "no role becomes vacant";
  return {
    possible: ids.length > 0,
    summary: `${plural(ids.length, "session")} would end: ${freed}, and ${plural(keys, "key")} would be deleted`,
    risk: roles.length + keys > 0 ? "medium" : "low",
    expected_gap_ms: null,
    affected: { roles: 0, sessions: 0 },
    warnings: answer.more ? ["There are more. One call ends the oldest 1,000: call again for the others."] : [],
    candidates: [],
  };
}

function end(s) {
  open({
    title: `End session ${s.name}`,
    method: "DELETE",
    path: `/v1/sessions/${encodeURIComponent(s.session_id)}`,
    toPlan: planOf,
    told: () => "The session has ended.",
    danger: true,
    help: "All that the session holds is freed. Its client learns of it at its next renewal.",
    fields: [],
  });
}

function endAll(identity) {
  open({
    title: `End all sessions of ${identity}`,
    method: "DELETE",
    path: `/v1/sessions?identity=${encodeURIComponent(identity)}`,
    toPlan: planOf,
    told: (answer) => `${plural(answer.session_ids.length, "session")} ended${answer.more ? ", and there are more" : ""}.`,
    danger: true,
    help: "All that these sessions hold is freed, also of those that begin until you run the plan.",
    fields: [],
  });
}

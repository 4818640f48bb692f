// Roles: who holds each, since when, who waits, and who held it before.

import { open } from "./actions.js";
import { button, clock, count, decoded, h, note, now, pill, plural, section, sentence, since, span, table } from "./dom.js";
import { get, list, may, net, readFrom } from "./net.js";
import * as words from "./words.js";

let items = null;
let shown = null; // {name, role, history} of the opened role
const opened = () => decoded(location.hash.split("/")[2] ?? "");

export const roles = {
  title: "Roles",
  ticks: 5000,
  async load() {
    items = await list(readFrom("/v1/roles?all"));
    const name = opened();
    if (!name) {
      shown = null;
      return;
    }
    const path = `/v1/roles/${encodeURIComponent(name)}`;
    const [role, history] = await Promise.all([
      get(readFrom(`${path}?all`)).catch((err) => {
        if (err.status === 404) return { role: name, holder: "", vacant: err.message };
        throw err;
      }),
      get(readFrom(`${path}/history`)).catch((err) => {
        if (err.status === 404) return { items: [], elections: 0 };
        throw err;
      }),
    ]);
    shown = { name, role, history };
  },
  show() {
    if (!items) return [note(roles.failed || "Loading…")];
    const detail = shown && shown.name === opened() ? one(shown) : null;
    return [
      detail,
      section(
        "Roles",
        note(
          "A role has exactly one holder. The token of a tenure is greater than all before it, and proves who holds the role now.",
        ),
        roles.failed && h("p", { class: "refusal" }, roles.failed),
        items.length === 0
          ? note("No role was ever held. A process campaigns for one with northstarctl run --role NAME -- COMMAND.")
          : table(
              "Roles",
              [
                ["Role", ""],
                ["Holder", ""],
                ["Token", "num"],
                ["Held for", "num"],
                ["Lease", "num"],
              ],
              items.map((r) => ({
                key: r.role,
                cells: [
                  [
                    h("a", { href: `#/roles/${encodeURIComponent(r.role)}` }, r.role),
                    flaps(r.role) && pill("warn", "flapping"),
                  ],
                  r.holder || pill("warn", "vacant"),
                  r.token ? count(r.token) : "–",
                  r.acquired_at ? since(r.acquired_at) : "–",
                  r.lease_until ? `${span(Math.max(0, Date.parse(r.lease_until) - now()))} left` : "–",
                ],
              })),
            ),
      ),
    ];
  },
};

// flaps reports whether the events know so many tenures of a role that it flaps.
const flaps = (role) =>
  words.flapping(
    net.events
      .filter((e) => e.type === "role" && e.fields?.role === role && !e.fields.cause)
      .map((e) => ({ acquired_at: e.at })),
  );

function one({ name, role, history }) {
  const held = Boolean(role.holder);
  const queue = role.candidates ?? [];
  return section(
    `Role ${name}`,
    h(
      "p",
      {},
      held
        ? [
            pill("lead", role.holder),
            ` holds it with token ${count(role.token)} for ${since(role.acquired_at)}, by session `,
            h("a", { href: "#/sessions" }, role.session_id),
            ".",
          ]
        : sentence(role.vacant.replace(/^role: /, "")),
    ),
    role.value && h("p", {}, "Value: ", h("code", {}, role.value)),
    words.flapping(history.items) &&
      h(
        "p",
        { class: "banner warn" },
        "This role is flapping: it changed hands five times or more in the last ten minutes.",
      ),
    h("h3", {}, "Queue"),
    queue.length === 0
      ? note("Nothing waits for it.")
      : table(
          "Queue",
          [
            ["Session", ""],
            ["ID", ""],
            ["May be elected", ""],
            ["Takeover delay", "num"],
            ["", ""],
          ],
          queue.map((q) => ({
            key: q.session_id,
            cells: [
              q.name,
              q.session_id,
              q.eligible ? "yes" : "not now",
              span(q.takeover_delay_ms),
              may("operator") && held ? button("Hand over…", () => handOver(name, q)) : "–",
            ],
          })),
        ),
    may("operator") &&
      held &&
      h(
        "div",
        { class: "actions" },
        button(
          "Evict the holder…",
          () =>
            open({
              title: `Evict ${role.holder} from ${name}`,
              method: "DELETE",
              path: `/admin/roles/${encodeURIComponent(name)}`,
              danger: true,
              help: "The role is revoked from its holder. The next in the queue gets it once the old holder has let go, or its session has ended.",
              fields: [],
            }),
          "danger",
        ),
      ),
    h("h3", {}, `History (${plural(history.elections, "election")} in all)`),
    history.items.length === 0
      ? note("There is none.")
      : table(
          "History",
          [
            ["Holder", ""],
            ["Token", "num"],
            ["From", ""],
            ["For", "num"],
            ["Ended because", ""],
          ],
          history.items.map((t) => ({
            key: String(t.token),
            cells: [
              t.holder,
              count(t.token),
              clock(t.acquired_at),
              span((t.ended_at ? Date.parse(t.ended_at) : now()) - Date.parse(t.acquired_at)),
              t.ended_at ? (words.causes[t.cause] ?? t.cause) : pill("good", "lasts"),
            ],
          })),
        ),
    h("p", {}, h("a", { href: "#/roles" }, "Close")),
  );
}

function handOver(name, q) {
  open({
    title: `Hand ${name} over to ${q.name}`,
    method: "POST",
    path: `/admin/roles/${encodeURIComponent(name)}/transfer`,
    fixed: { to_session_id: q.session_id },
    help: `The holder loses the role, and ${q.name} gets it once the holder has let go.`,
    fields: [],
  });
}

// The audit log: who did what, why, and with what result.

import { clock, count, decoded, h, note, pill, section, table } from "./dom.js";
import { get, readFrom, reload } from "./net.js";

let answer = null;
let kind = "operators";

export const audit = {
  title: "Audit",
  role: "operator",
  ticks: 5000, // a record alone changes nothing else
  async load() {
    answer = await get(readFrom(`/admin/audit?limit=200&class=${kind}`));
  },
  show() {
    if (!answer) return [note(audit.failed || "Loading…")];
    const pick = (event) => {
      kind = event.target.value;
      reload();
    };
    const d = answer.dropped;
    return [
      section(
        "Audit log",
        h(
          "form",
          { class: "line", onsubmit: (event) => event.preventDefault() },
          h("label", { for: "audit-class" }, "Calls of"),
          h(
            "select",
            { id: "audit-class", onchange: pick },
            h("option", { value: "operators", selected: kind === "operators" }, "operators"),
            h("option", { value: "clients", selected: kind === "clients" }, "clients, and refused calls"),
          ),
        ),
        audit.failed && h("p", { class: "refusal" }, audit.failed),
        answer.items.length === 0
          ? note("Nothing was recorded yet.")
          : table(
              "Audit log",
              [
                ["When", ""],
                ["Who", ""],
                ["What", ""],
                ["Reason", ""],
                ["Result", ""],
              ],
              [...answer.items].reverse().map((r) => ({
                key: r.seq,
                cells: [
                  clock(r.when),
                  [
                    `${r.who} (${r.role})`,
                    h("span", { class: "sub" }, `from ${r.from}${r.forwarded_by ? ` via ${r.forwarded_by}` : ""}`),
                  ],
                  [
                    decoded(r.what),
                    r.dry_run && pill("", "dry run"),
                    r.request && h("span", { class: "sub" }, request(r.request)),
                  ],
                  r.reason || "–",
                  [
                    r.status < 400 ? pill("good", "ok") : pill("bad", r.result),
                    r.detail && h("span", { class: "sub" }, r.detail),
                    r.delayed && pill("warn", "delayed"),
                  ],
                ],
              })),
            ),
        note(
          `The newest 200. Dropped for age or number: ${count(d.operators)} of operators, ${count(d.clients)} of clients. Never replicated: ${count(d.lost)}.`,
        ),
      ),
    ];
  },
};

const request = (r) =>
  Object.entries(r)
    .filter(([k]) => !["reason", "dry_run", "plan_id"].includes(k))
    .map(([k, v]) => `${k}: ${Array.isArray(v) ? v.join(", ") : v}`)
    .join(", ");

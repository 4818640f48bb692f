// Split brain: what each node claims, in words, and what the node that answers makes of it.

import { open } from "./actions.js";
import { button, h, note, pill, section, span, table } from "./dom.js";
import { call, net } from "./net.js";
import * as words from "./words.js";

export const claims = {
  title: "Split brain",
  role: "operator",
  show() {
    const r = net.view.split_brain;
    if (!r) return [note("This node has not checked yet.")];
    const mood = r.verdict === "ok" ? "good" : r.verdict === "unreachable" ? "warn" : "bad";
    return [
      section(
        "Is there one leader?",
        h("p", { class: "big" }, words.verdicts[r.verdict] ?? r.verdict),
        h(
          "p",
          {},
          pill(mood, r.verdict.replaceAll("_", " ")),
          r.refusing && pill("bad", `node ${r.checked_by} serves only stale reads`),
        ),
        r.findings.length > 0 &&
          h(
            "ul",
            { class: "findings" },
            r.findings.map((f) => h("li", {}, f.detail)),
          ),
        h("div", { class: "actions" }, button("Check now…", check)),
      ),
      section(
        "What each node says",
        table(
          "Claims",
          [
            ["Node", ""],
            ["It", ""],
            ["How it is known", ""],
            ["Cluster", ""],
            ["Age", "num"],
          ],
          r.claims.map((c) => ({
            key: `${c.node_id} ${c.source} ${c.address}`,
            cells: [
              c.node_id,
              [words.claim(c), " ", c.leads && pill("lead", "leads")],
              [words.sources[c.source] ?? c.source, c.address && h("span", { class: "sub" }, c.address)],
              c.cluster_id ? `${c.cluster_id.slice(0, 8)}… generation ${c.generation}` : "–",
              span(Math.max(0, Math.round((Date.parse(r.checked_at) - Date.parse(c.at)) / 1000) * 1000)),
            ],
          })),
        ),
        note(
          `Compared once a second by node ${r.checked_by}. A leader that is cut off may believe for a short time that it still leads; it cannot commit anything.`,
        ),
      ),
    ];
  },
};

function check() {
  open({
    title: "Check for a split brain",
    confirm: "Check",
    fields: [],
    help: "Every member is asked now who leads. The check changes nothing.",
    run: async () => {
      const r = await (await call("/admin/splitbrain/check", { method: "POST", json: {} })).json();
      return `${words.verdicts[r.verdict] ?? r.verdict} ${r.findings.map((f) => f.detail).join("; ")}`;
    },
  });
}

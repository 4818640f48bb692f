// Application nodes: what the programs that use the cluster say of themselves.

import { count, h, note, pill, section, since, table } from "./dom.js";
import { list, readFrom } from "./net.js";

let items = null;

export const nodes = {
  title: "Application nodes",
  async load() {
    items = await list(readFrom("/v1/nodes"));
  },
  show() {
    if (!items) return [note(nodes.failed || "Loading…")];
    return [
      section(
        "Application nodes",
        note(
          "Programs register here with their session. One whose session has ended is dead, and is removed some time later.",
        ),
        nodes.failed && h("p", { class: "refusal" }, nodes.failed),
        items.length === 0
          ? note("None is registered.")
          : table(
              "Application nodes",
              [
                ["Node", ""],
                ["Status", ""],
                ["Roles", ""],
                ["Capabilities", ""],
                ["Address", ""],
                ["Load", ""],
                ["Version", ""],
                ["Changed", "num"],
              ],
              items.map((n) => ({
                key: n.id,
                cells: [
                  [n.id, h("span", { class: "sub" }, n.hostname)],
                  pill({ active: "good", dead: "bad" }[n.status] ?? "warn", n.status),
                  n.roles?.join(", ") || "–",
                  n.capabilities?.join(", ") || "–",
                  [n.address, n.http_port ? ` :${n.http_port}` : "", n.grpc_port ? ` :${n.grpc_port}` : ""].join("") ||
                    "–",
                  load(n.load),
                  n.version || "–",
                  n.updated_at ? `${since(n.updated_at)} ago` : "–",
                ],
              })),
            ),
      ),
    ];
  },
};

function load(l) {
  if (!l) return "–";
  const parts = [];
  if (l.connections) parts.push(`${count(l.connections)} connections`);
  if (l.jobs) parts.push(`${count(l.jobs)} jobs`);
  if (l.cpu) parts.push(`CPU ${count(l.cpu)}`);
  if (l.memory) parts.push(`memory ${count(l.memory)}`);
  return parts.join(", ") || "–";
}

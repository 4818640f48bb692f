// What operators do to the cluster and its members.

import { open } from "./actions.js";
import { button, size } from "./dom.js";
import { call, net } from "./net.js";

const ids = (members) => members.map((m) => [m.id, m.id]);
const voters = (view) => view.cluster.members.filter((m) => m.suffrage === "voter");
const best = ["", "the best placed voter"];
const target = (options) => ({ name: "target_leader_id", label: "New leader", type: "select", options });

export function clusterActions(view) {
  const c = view.cluster;
  const others = voters(view).filter((m) => m.id !== c.leader_id);
  const lost = c.quorum.voters > 0 && c.quorum.healthy < c.quorum.needed;
  return [
    button("Transfer leadership…", () =>
      open({
        title: "Transfer leadership",
        method: "POST",
        path: "/admin/transfer",
        help: "The leader waits until the target has all entries, and hands over. Writes pause for some milliseconds. If anything is wrong, the old leader goes on.",
        fields: [target([best, ...ids(others)])],
      }),
    ),
    button("Failover…", () =>
      open({
        title: "Failover",
        method: "POST",
        path: "/admin/failover",
        help: "A transfer if the leader can take part in it, otherwise an election on the target. It works without a leader, and while automatic failover is paused.",
        fields: [target([best, ...ids(others)])],
      }),
    ),
    button(
      "Emergency failover…",
      () =>
        open({
          title: "Emergency failover",
          method: "POST",
          path: "/admin/failover/emergency",
          danger: true,
          reasonRequired: true,
          force: true,
          help: "Starts an election on the target immediately, without health checks and without waiting for its log. The voters still decide, so nothing committed is lost; they may refuse.",
          fields: [target(ids(others))],
        }),
      "danger",
    ),
    c.auto_failover
      ? button("Pause automatic failover…", () =>
          open({
            title: "Pause automatic failover",
            method: "POST",
            path: "/admin/auto-failover",
            fixed: { enabled: false },
            help: "A leader that fails meanwhile is not replaced, and writes stop until an operator acts.",
            fields: [
              {
                name: "ttl_ms",
                label: "For how long",
                type: "select",
                number: true,
                options: [
                  ["900000", "15 minutes"],
                  ["3600000", "1 hour"],
                  ["28800000", "8 hours"],
                  ["", "until it is resumed"],
                ],
              },
            ],
          }),
        )
      : button("Resume automatic failover…", () =>
          open({
            title: "Resume automatic failover",
            method: "POST",
            path: "/admin/auto-failover",
            fixed: { enabled: true },
            help: "A leader that fails is replaced by an election again.",
            fields: [],
          }),
        ),
    button("Take a snapshot…", () =>
      open({
        title: "Take a snapshot",
        run: snapshot,
        confirm: "Download",
        help: "Downloads a backup of all keys and settings, with checksums inside. northstarctl snapshot inspect checks it, northstarctl snapshot restore restores it.",
        fields: [],
      }),
    ),
    lost &&
      button(
        "Recover the lost quorum…",
        () =>
          open({
            title: "Recover the lost quorum",
            method: "POST",
            path: "/admin/recover",
            danger: true,
            reasonRequired: true,
            force: true,
            help: "Only if the other nodes never come back. Of the survivors, the node with the most up-to-date log becomes the only voter of a new generation. What the survivors never received is lost.",
            fields: [
              {
                name: "survivors",
                label: "Nodes that are left",
                type: "checks",
                options: c.members.map((m) => {
                  const answers = m.healthy || view.nodes.some((n) => n.node_id === m.id);
                  return [m.id, `${m.id} (${answers ? "answers" : "does not answer"})`, answers];
                }),
              },
              {
                name: "confirm",
                label: `Type the cluster's ID to confirm: ${c.cluster_id}`,
                type: "text",
                required: true,
              },
            ],
          }),
        "danger",
      ),
  ];
}

async function snapshot(progress) {
  const answer = await call("/admin/snapshot", { timeout: 600_000 });
  const parts = [];
  let bytes = 0;
  for (let reader = answer.body.getReader(); ; ) {
    const { value, done } = await reader.read();
    if (done) break;
    parts.push(value);
    progress(`${size((bytes += value.length))} received`);
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts));
  const name = `${net.view.cluster.cluster_name}-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.snapshot`;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  return `Saved as ${name}, ${size(bytes)}. Check it with northstarctl snapshot inspect.`;
}

export function memberActions(view, m) {
  const path = `/admin/members/${m.id}`;
  const drained = m.lifecycle === "draining";
  return [
    m.suffrage === "voter" &&
      m.healthy &&
      !["", m.id].includes(view.cluster.leader_id) &&
      button("Make leader…", () =>
        open({
          title: `Make ${m.id} the leader`,
          method: "POST",
          path: "/admin/transfer",
          fixed: { target_leader_id: m.id },
          help: `The leader waits until ${m.id} has all entries, and hands over. If anything is wrong, the old leader goes on.`,
          fields: [],
        }),
      ),
    drained
      ? button("Undrain…", () =>
          open({
            title: `End the drain of ${m.id}`,
            method: "POST",
            path: `/admin/nodes/${m.id}/undrain`,
            help: "The node may lead again, and takes attached clients again.",
            fields: [],
          }),
        )
      : button("Drain…", () =>
          open({
            title: `Drain ${m.id}`,
            method: "POST",
            path: `/admin/nodes/${m.id}/drain`,
            help: "Leadership moves away, attached clients are told to move, and the node does not lead until the drain ends. It goes on voting.",
            fields: [],
          }),
        ),
    button("Change…", () =>
      open({
        title: `Change ${m.id}`,
        method: "PATCH",
        path,
        help: "Priority: 0 to 255, higher is preferred as leader, 0 never leads. A node that is not eligible votes and does not lead.",
        fields: [
          {
            name: "priority",
            label: "Priority",
            type: "number",
            number: true,
            value: String(m.priority),
            min: 0,
            max: 255,
          },
          {
            name: "eligible",
            label: "May lead",
            type: "select",
            boolean: true,
            value: String(m.eligible),
            options: [
              ["true", "yes"],
              ["false", "no"],
            ],
          },
          {
            name: "suffrage",
            label: "Vote",
            type: "select",
            value: m.suffrage,
            options: [
              ["voter", "has a vote"],
              ["nonvoter", "has no vote"],
            ],
          },
          { name: "zone", label: "Zone", type: "text", value: m.zone },
        ],
        original: { priority: m.priority, eligible: m.eligible, suffrage: m.suffrage, zone: m.zone },
      }),
    ),
    !m.healthy &&
      button("Re-admit…", () =>
        open({
          title: `Re-admit ${m.id}`,
          method: "PATCH",
          path,
          fixed: { readmit: true },
          danger: true,
          help: "Only after the disk of this node was replaced or wiped: the cluster accepts it with its new data directory. Its old data must never come back.",
          fields: [],
        }),
      ),
    !m.healthy &&
      m.id !== view.cluster.leader_id &&
      button(
        "Remove…",
        () =>
          open({
            title: `Remove ${m.id}`,
            method: "DELETE",
            path,
            danger: true,
            help: "The node leaves the cluster and loses its vote. A removal that would lose the quorum is refused.",
            fields: [],
          }),
        "danger",
      ),
  ];
}

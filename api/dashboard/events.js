// Events of all nodes as they happen.

import { clock, h, note, pill, section } from "./dom.js";
import { eventsAfter, net, redraw } from "./net.js";

const filter = { type: "", node: "", text: "" };
let paused = null; // the events that were there when the reader paused

export const events = {
  title: "Events",
  show() {
    const all = paused ?? net.events;
    const shown = all.filter(
      (e) =>
        (!filter.type || e.type === filter.type) &&
        (!filter.node || e.node === filter.node) &&
        (!filter.text || e.message.toLowerCase().includes(filter.text.toLowerCase())),
    );
    const fresh = paused ? eventsAfter(paused[0]).length : 0;
    return [
      section(
        "Events",
        h(
          "form",
          { class: "line", onsubmit: (event) => event.preventDefault() },
          choice("type", "Type", [...new Set(net.events.map((e) => e.type))].sort()),
          choice("node", "Node", [...new Set(net.events.map((e) => e.node))].sort()),
          h("label", { for: "filter-text" }, "Contains"),
          h("input", {
            id: "filter-text",
            value: filter.text,
            oninput: (event) => {
              filter.text = event.target.value;
              redraw();
            },
          }),
          h(
            "button",
            { type: "button", "aria-pressed": String(paused !== null), onclick: pause },
            paused ? `Continue${fresh > 0 ? ` (${fresh} new)` : ""}` : "Pause",
          ),
        ),
        shown.length === 0
          ? note(all.length ? "No event matches." : "Nothing yet.")
          : h(
              "div",
              { class: "events", tabindex: "0", role: "region", "aria-label": "Events" },
              h("ol", {}, shown.map(line)),
            ),
        note("The newest 500 events of all reachable nodes, since their processes started."),
      ),
    ];
  },
};

function pause() {
  paused = paused ? null : [...net.events];
  redraw();
}

function choice(name, label, values) {
  return [
    h("label", { for: `filter-${name}` }, label),
    h(
      "select",
      {
        id: `filter-${name}`,
        onchange: (event) => {
          filter[name] = event.target.value;
          redraw();
        },
      },
      h("option", { value: "" }, "all"),
      values.map((v) => h("option", { value: v, selected: filter[name] === v }, v)),
    ),
  ];
}

const grave = (e) => e.fields?.severity === "critical" || e.type === "splitbrain";

export const line = (e) =>
  h(
    "li",
    { "data-key": `${e.node} ${e.at} ${e.message}` },
    clock(e.at, true),
    h("span", { class: "type" }, `${e.node} ${e.type}`),
    h("span", { class: "message" }, grave(e) && pill("bad", "critical"), e.message),
  );

// Small graphs of the last half hour, from the memory of the node that the page talks to.

import { count, h, note, section, span } from "./dom.js";

const width = 300;
const height = 64;
const shortest = 120_000; // ms that a graph shows at least

// graphs ends with the newest sample, so that a graph in which nothing happens is not drawn again.
export function graphs(samples, node) {
  const now = samples.length > 0 ? Date.parse(samples.at(-1).at) : 0;
  const shown = Math.max(shortest, samples.length > 0 ? now - Date.parse(samples[0].at) : 0);
  const graph = (title, unit, value) => {
    const values = samples.map(value);
    const last = values.at(-1);
    const top = Math.max(...values, 0);
    const text = last === undefined ? "–" : unit(last);
    return h(
      "figure",
      { class: "graph", "data-key": title },
      h("figcaption", {}, title, " ", h("strong", {}, text)),
      h(
        "svg",
        {
          viewBox: `0 0 ${width} ${height}`,
          role: "img",
          preserveAspectRatio: "none",
          "aria-label": `${title}: now ${text}, at most ${unit(top)} in the time shown`,
        },
        h("line", { class: "axis", x1: 0, x2: width, y1: height - 1, y2: height - 1 }),
        h("polyline", { class: "area", points: points(samples, values, top, [now, shown], true) }),
        h("polyline", { class: "curve", points: points(samples, values, top, [now, shown], false) }),
      ),
      h("p", { class: "muted" }, top > 0 ? `at most ${unit(top)}` : "nothing in the time shown"),
    );
  };
  return section(
    "The last 30 minutes",
    h(
      "div",
      { class: "graphs" },
      graph(
        "Changes",
        (v) => `${count(v)}/s`,
        (s) => s.changes_per_s,
      ),
      graph(
        "Writes, 99th percentile",
        (v) => (v ? span(v) : "none"),
        (s) => s.write_p99_ms,
      ),
      graph(
        "Without a leader, of each 5 s",
        (v) => span(v),
        (s) => s.leaderless_ms,
      ),
      graph(
        "Disk, 99th percentile",
        (v) => (v ? span(v) : "none"),
        (s) => s.disk_p99_ms,
      ),
    ),
    note(`From ${span(shown)} ago until now, from the memory of node ${node}. A restart of the node empties it.`),
  );
}

function points(samples, values, top, [now, shown], closed) {
  if (samples.length === 0) return "";
  const x = (i) => Math.max(0, width * (1 - (now - Date.parse(samples[i].at)) / shown)).toFixed(1);
  const y = (v) => (height - 2 - (top > 0 ? ((height - 6) * v) / top : 0)).toFixed(1);
  const line = values
    .map((v, i) => (v === values[i - 1] && v === values[i + 1] ? "" : `${x(i)},${y(v)}`)) // a level needs its ends
    .filter(Boolean);
  return closed ? [`${x(0)},${height}`, ...line, `${x(values.length - 1)},${height}`].join(" ") : line.join(" ");
}

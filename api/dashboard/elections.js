// Elections: who led when, how long no node led, and why each election happened.

import { atNode, clock, count, h, note, pill, section, since, span, table } from "./dom.js";
import { get, net } from "./net.js";
import * as words from "./words.js";

let items = null;
let complete = false; // whether the oldest one is the first that is known
let missing = [];
let steps = new Map(); // of failovers, by term: of the winners that still know them

export const elections = {
  title: "Elections",
  // Terms and events are enough, but for votes that may still arrive.
  changes: () => [pending() && Math.floor(Date.now() / 5000)],
  async load() {
    const [list, events] = await Promise.all([
      get("/v1/elections?limit=100"),
      get("/v1/events?type=election&limit=500"),
    ]);
    items = list.items;
    complete = !list.next;
    missing = list.missing;
    steps = new Map(
      events.items.filter((e) => e.fields?.result === "won" && e.fields.steps).map((e) => [e.term, e.fields.steps]),
    );
  },
  show() {
    if (!items) return [note(elections.failed || "Loading…")];
    if (items.length === 0) return [section("Elections", note("There was no election yet."))];
    const longest = Math.max(...items.map((e) => e.leaderless_ms), 1);
    return [
      items.some((e) => e.result === "won") &&
        section("Who led when", tenures(items.filter((e) => e.result === "won"))),
      section(
        "Elections",
        note(
          "Newest first. The bar is the time without a leader, all to the same scale. Open an election to see why it happened.",
        ),
        h(
          "div",
          { class: "lanes" },
          items.map((e) => lane(e, longest)),
        ),
        missing.length > 0 && note(`Lost elections of ${missing.join(", ")} are not shown: these nodes do not answer.`),
      ),
    ];
  },
};

const unanswered = (v) => !v.granted && (v.reason === "not reached" || v.reason.startsWith("no answer"));
const pending = () => items?.some((e) => e.votes.some((v) => !v.granted && v.reason === "no answer yet"));

const hues = 6;
const shade = (id, ids) => `lead-${ids.indexOf(id) % hues}`;
const ledAt = (e) => Date.parse(e.started_at) + e.duration_ms;

// leaderless says how long there was no leader. A node that has started knows of its own time only.
const leaderless = (e) => `${span(e.leaderless_ms)} ${e.trigger === "startup" ? "from its start" : "without a leader"}`;

// ledUntil is until when the winner of an election led, and whether that is known. It is not if the nodes were started
// before the next election, or if this page has never seen the leader.
function ledUntil(e, next, to) {
  if (next) return { at: ledAt(next) - next.leaderless_ms, known: next.trigger !== "startup" };
  if (net.view.cluster.leader_id) return { at: to, known: true };
  if (!net.lastLeader) return { at: to, known: false };
  return { at: Math.min(to, Math.max(ledAt(e), atNode(net.lastLeader))), known: true };
}

// tenures draws the terms from the oldest known to now, to scale; a gap without a leader is red.
function tenures(won) {
  const oldest = [...won].reverse();
  const ids = [...new Set(net.view.cluster.members.map((m) => m.id).concat(oldest.map((e) => e.candidate_id)))].sort();
  const from = ledAt(oldest[0]);
  const to = Math.max(Date.parse(net.view.at), from + 1);
  const ends = oldest.map((e, i) => ledUntil(e, oldest[i + 1], to));
  const x = (at) => (1000 * (at - from)) / (to - from);
  const bars = oldest.map((e, i) => {
    const { at, known } = ends[i];
    const [x1, x2] = [x(ledAt(e)), x(at)];
    const shape = { x: x1.toFixed(1), y: 8, height: 28, width: Math.max(1, x2 - x1).toFixed(1) };
    return h(
      "rect",
      { class: shade(e.candidate_id, ids) + (known ? "" : " unsure"), ...shape },
      h("title", {}, `${e.candidate_id}, term ${e.term}, ${known ? span(at - ledAt(e)) : "until when is not known"}`),
    );
  });
  const gap = (begin, end, text) =>
    h(
      "rect",
      { class: "gap", x: x(begin).toFixed(1), y: 4, height: 36, width: Math.max(1.5, x(end) - x(begin)).toFixed(1) },
      h("title", {}, text),
    );
  const gaps = oldest
    .slice(1)
    .filter((e) => e.leaderless_ms > 0)
    .map((e) => gap(ledAt(e) - e.leaderless_ms, ledAt(e), `${leaderless(e)}, before term ${e.term}`));
  const last = ends.at(-1);
  if (last.known && last.at < to) gaps.push(gap(last.at, to, `no leader for ${span(to - last.at)}`));
  const names = ids.filter((id) => oldest.some((e) => e.candidate_id === id));
  return h(
    "div",
    { class: "tenures" },
    h(
      "svg",
      {
        viewBox: "0 0 1000 44",
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `Terms of ${names.join(", ")} since ${new Date(from).toLocaleString()}`,
      },
      bars,
      gaps,
    ),
    h(
      "p",
      { class: "legend muted" },
      names.map((id) => h("span", { class: `key ${shade(id, ids)}` }, id)),
      h("span", { class: "key gap" }, "no leader"),
      ends.some((e) => !e.known) && h("span", {}, "pale: until when is not known"),
      h("span", {}, `from ${span(to - from)} ago until now`),
    ),
  );
}

function mark(e) {
  if (e.result !== "won" && (e.votes.length === 0 || words.preVotes(e))) return pill("", "attempt");
  if (e.result !== "won") return pill("bad", "failed");
  if (e.needless) return pill("bad", "needless");
  if (words.planned(e)) return pill("", "planned");
  if (e.trigger === "startup") {
    const first = complete && e === items.findLast((one) => one.result === "won");
    return pill("", first ? "first start" : "start");
  }
  return pill("warn", "failover");
}

function lane(e, longest) {
  const won = e.result === "won";
  const width = won ? Math.max(e.leaderless_ms > 0 ? 3 : 0, (300 * e.leaderless_ms) / longest) : 0;
  return h(
    "details",
    { class: "lane", "data-key": `${e.term} ${e.result} ${e.candidate_id}` },
    h(
      "summary",
      {},
      h("span", { class: "term" }, `Term ${count(e.term)}`),
      h("strong", {}, e.candidate_id),
      mark(e),
      h(
        "span",
        { class: "gapbar" },
        h(
          "svg",
          { viewBox: "0 0 300 12", preserveAspectRatio: "none", "aria-hidden": "true" },
          h("rect", { class: "gap", x: 0, y: 2, height: 8, width: width.toFixed(1) }),
        ),
        won ? (e.leaderless_ms > 0 ? leaderless(e) : "no gap") : "was not elected",
      ),
      h("span", { class: "muted" }, clock(e.started_at)),
    ),
    explain(e),
  );
}

function answer(v) {
  if (v.pre) return v.granted ? pill("", "yes") : pill("", "no");
  if (unanswered(v)) return pill("warn", "no answer");
  return v.granted ? pill("good", "granted") : pill("bad", "not granted");
}

function explain(e) {
  const phases = words.steps(steps.get(e.term));
  return h(
    "div",
    { class: "explained" },
    words.election(e).map((sentence) => h("p", {}, sentence)),
    e.votes.length > 0
      ? table(
          `Votes of term ${e.term}`,
          [
            ["Voter", ""],
            [words.preVotes(e) ? "Would vote for it" : "Vote", ""],
            ["Reason", ""],
          ],
          e.votes.map((v) => ({
            key: v.voter_id,
            cells: [v.voter_id, answer(v), v.reason || "–"],
          })),
        )
      : note("No votes were recorded."),
    phases.length > 0 &&
      table(
        `Steps of term ${e.term}`,
        [
          ["Step", ""],
          ["After", "num"],
          ["Took", "num"],
        ],
        phases.map((s) => ({
          key: s.text,
          cells: [s.text, span(s.at), span(s.took)],
        })),
      ),
    phases.length > 0 && note("Times count from when the failure was noticed."),
    note(`Started ${since(e.started_at)} ago.`),
  );
}

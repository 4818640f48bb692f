// The page: which part is shown, when it is brought up to date, and what surrounds it.

import { audit } from "./audit.js";
import { button, h, note, pill, show, span } from "./dom.js";
import { claims } from "./claims.js";
import { elections } from "./elections.js";
import { events } from "./events.js";
import { keys } from "./keys.js";
import { login, showPublic } from "./login.js";
import { caller, isLeaderless, isStale, may, membersElsewhere, net, onChange, run, useToken } from "./net.js";
import { nodes } from "./nodes.js";
import { overview } from "./overview.js";
import { roles } from "./roles.js";
import { sessions } from "./sessions.js";
import * as words from "./words.js";

// A page has a title, the role that may see it, show() for its elements, and may have load(), which requests what the
// stream does not have. load is called when the page is opened, and again when the cluster's state has changed, or what
// changes() returns. A page whose times run has ticks: the ms after which it is loaded and drawn although nothing has
// changed.
const pages = { overview, elections, roles, sessions, nodes, keys, events, audit, splitbrain: claims };
const visible = () => Object.entries(pages).filter(([, page]) => may(page.role ?? "observer"));
const $ = (id) => document.getElementById(id);

function currentPage() {
  const id = location.hash.replace(/^#\/?/, "").split("/")[0];
  return pages[id] && may(pages[id].role ?? "observer") ? pages[id] : overview;
}

let drawnAt = 0;
function draw() {
  drawTitle();
  if (document.hidden) return; // until it is looked at
  drawnAt = Date.now();
  const page = currentPage();
  drawAround(page);
  if (net.refused) {
    show($("main"), login());
    showPublic(words);
  } else if (net.view) {
    try {
      show($("main"), page.show());
    } catch (err) {
      reportError(err);
      show($("main"), note(`This page cannot be shown: ${err.message}`));
    }
    refresh(page); // with other data it may be shown
  }
}

function drawAround(page) {
  const view = net.view;
  const old = isStale() || net.failed;
  document.body.classList.toggle("stale", Boolean(old && view));
  show(
    $("banners"),
    words
      .banners(view, { stale: old && !net.failed, failed: net.failed, ledAgo: Date.now() - net.lastLeader })
      .map((b) => h("p", { class: `banner ${b.mood}` }, b.text)),
    net.failed ? elsewhere() : "",
  );
  const c = view?.cluster;
  drawConnection(view, old);
  show(
    $("identity"),
    view
      ? [`${caller().name} (${caller().role}) `, net.token ? button("Log out", () => useToken(null), "link") : ""]
      : "",
  );
  show(
    $("tabs"),
    view
      ? visible().map(([id, p]) => h("a", { href: `#/${id}`, "aria-current": p === page ? "page" : null }, p.title))
      : [],
  );
  const self = view?.nodes.find((n) => n.node_id === view.node_id);
  show(
    $("node"),
    self
      ? `Node ${self.node_id}, ${self.version}, cluster ${c.cluster_id || "without an ID yet"}, generation ${c.generation}`
      : "",
  );
}

function drawTitle() {
  const c = net.view?.cluster;
  const name = (c?.cluster_name ?? $("cluster-name").textContent) || "";
  show($("cluster-name"), name);
  const old = c && (isStale() || net.failed) ? "old: " : "";
  const title = `${old}${c ? c.leader_id || "no leader" : "NorthStar"}${name ? ` · ${name}` : ""} · NorthStar`;
  if (document.title !== title) document.title = title; // the browser is told even of an equal one
}

// elsewhere links to the pages of the members, where this page cannot move to them by itself.
function elsewhere() {
  const pages = membersElsewhere();
  if (pages.length === 0) return "";
  return h(
    "p",
    { class: "banner warn" },
    `This page was opened as ${location.host}, which is no member's address, so it cannot move to another node. Open one: `,
    pages.map((page) => [h("a", { href: page }, page.replace(/^https?:\/\/|\/$/g, "")), " "]),
  );
}

function drawConnection(view, old) {
  const place = $("connection");
  const address = net.origin.replace(/^https?:\/\//, "");
  const age = span(Math.floor((Date.now() - net.lastData) / 1000) * 1000);
  let [mood, text] = ["warn", "connecting…"];
  if (net.refused) [mood, text] = ["warn", "log in"];
  else if (old) [mood, text] = ["bad", net.lastData ? `not connected, data ${age} old` : "not connected"];
  else if (view) [mood, text] = ["good", `via ${view.node_id}, live`];
  const moved = net.moves.at(-1);
  place.className = `pill ${mood}`;
  place.title = `${address}${moved ? `; moved here from ${moved.from.replace(/^https?:\/\//, "")}` : ""}`;
  show(place, text);
}

// refresh loads what a page needs when it is opened and when something has changed: at most every two seconds, and for
// at most a tenth of the time.
const loaded = { page: null, hash: "", mark: "", at: 0, took: 0, busy: false };
async function refresh(page) {
  const c = net.view.cluster;
  const state = page.changes ? page.changes() : [c.revision, c.state.sessions];
  const tick = page.ticks && Math.floor(Date.now() / page.ticks);
  const mark = [...state, tick, c.leader_id, c.term, net.origin, net.events[0]?.seq].join();
  const opened = loaded.page !== page || loaded.hash !== location.hash;
  if (!page.load) loaded.page = page;
  if (!page.load || loaded.busy) return;
  if (!opened && (loaded.mark === mark || Date.now() - loaded.at < Math.max(2000, 10 * loaded.took))) return;
  Object.assign(loaded, { page, hash: location.hash, mark, at: Date.now(), busy: true });
  try {
    await page.load();
    page.failed = "";
  } catch (err) {
    page.failed = err.message;
    loaded.mark = ""; // try again
  }
  Object.assign(loaded, { took: Date.now() - loaded.at, busy: false });
  schedule();
}

let scheduled = false;
function schedule() {
  if (scheduled) return;
  scheduled = true;
  setTimeout(() => {
    scheduled = false;
    draw();
  }, 0);
}

onChange(schedule);
document.addEventListener("northstar:reload", () => {
  loaded.page = null;
  schedule();
});
addEventListener("hashchange", () => {
  draw();
  document.querySelector("#tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  $("main").focus({ preventScroll: true });
  scrollTo(0, 0);
});
setInterval(() => {
  // the age of old data grows, and how long there has been no leader
  const ticks = net.view && currentPage().ticks;
  if (isStale() || net.failed || isLeaderless() || (ticks && Date.now() - drawnAt >= ticks)) schedule();
}, 1000);
document.addEventListener("visibilitychange", schedule);
draw();
run();

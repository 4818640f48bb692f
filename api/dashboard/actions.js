// One dialog for every action: what is asked, the plan of a dry run, the reason, and the run of exactly that plan with
// its progress.

import { button, clock, count, h, note, pill, plural, sentence, show, span, table } from "./dom.js";
import { call, eventsAfter, net, onChange, reload } from "./net.js";

const dialog = document.getElementById("dialog");
const runTimeout = 70_000; // ms; an operator's call answers within 60 s
let act = null; // the open action; step is ask, plan, run or done
let opened = 0; // actions so far: each has a form of its own, as a form keeps what was typed into it

onChange(() => {
  if (act?.step === "run" || act?.step === "done") draw(); // events may come after the answer
});
dialog.addEventListener("cancel", (event) => {
  if (act?.step === "run") event.preventDefault();
});
dialog.addEventListener("close", () => {
  if (!dialog.open) act = null; // not if another action was opened meanwhile
});

// open opens the dialog of an action: {title, help, method, path, fields, fixed, original, danger, force, reasonRequired}.
// toPlan makes a plan of the answer to a dry run that is none, and told a sentence of the answer to the run. Or with run,
// which does something without a plan, confirm being the label of its button.
export function open(action) {
  act = { ...action, id: ++opened, values: {}, reason: "", step: "ask" };
  for (const f of act.fields) {
    act.values[f.name] =
      f.type === "checks" ? f.options.filter((o) => o[2]).map((o) => o[0]) : (f.value ?? f.options?.[0]?.[0] ?? "");
  }
  draw();
  if (!dialog.open) dialog.showModal();
}

const close = () => dialog.close();
const step = (next) => {
  Object.assign(act, next);
  draw();
};

// body returns the body of the call. Of a change, only what differs from the original is sent.
function body(more) {
  const out = { ...act.fixed };
  for (const f of act.fields) {
    const text = act.values[f.name];
    if (text === "" && f.type !== "text") continue;
    const value = f.number ? Number(text) : f.boolean ? text === "true" : text;
    if (act.original && act.original[f.name] === value) continue;
    if (value === "" && !act.original) continue;
    out[f.name] = value;
  }
  if (act.reason) out.reason = act.reason;
  return { ...out, ...more };
}

async function plan(event) {
  event?.preventDefault();
  const mine = act;
  step({ busy: true, failure: "" });
  try {
    const answer = await call(act.path, { method: act.method, json: body({ dry_run: true }), timeout: runTimeout });
    const told = await answer.json();
    if (act === mine) step({ plan: mine.toPlan ? mine.toPlan(told) : told, step: "plan", busy: false });
  } catch (err) {
    if (act === mine) step({ failure: err.message, busy: false });
  }
}

async function execute(event) {
  event?.preventDefault();
  const mine = act;
  step({ step: "run", began: Date.now(), newest: net.events[0], progress: "", failure: "" });
  const timer = setInterval(() => act === mine && draw(), 250);
  try {
    mine.result = mine.run
      ? await mine.run((text) => {
          mine.progress = text;
        })
      : await submit();
  } catch (err) {
    mine.failure = err.message;
    mine.votes = err.problem?.votes;
  }
  clearInterval(timer);
  mine.took = Date.now() - mine.began;
  if (act === mine) step({ step: "done" });
  reload();
}

async function submit() {
  const mine = act; // the dialog may be closed before the answer comes
  const more = { plan_id: act.plan?.plan_id };
  if (act.force) more.force = true;
  const answer = await call(act.path, {
    method: act.method,
    json: act.plan ? body(more) : undefined,
    timeout: runTimeout,
  });
  const text = await answer.text();
  const result = text ? JSON.parse(text) : {};
  if (mine.told) return mine.told(result);
  return (
    result.message ||
    (result.enabled === undefined ? "Done." : `Automatic failover is ${result.enabled ? "on" : "paused"}.`)
  );
}

function draw() {
  const parts = { ask, plan: showPlan, run: running, done }[act.step]();
  show(dialog, h("h2", { id: "dialog-title" }, act.title), parts);
}

function ask() {
  const simple = Boolean(act.run);
  return h(
    "form",
    { class: "form", "data-key": `ask ${act.id}`, onsubmit: simple ? execute : plan },
    h("p", {}, act.help),
    act.fields.map(field),
    !simple &&
      field({
        name: "reason",
        label: act.reasonRequired ? "Reason" : "Reason (for the audit log)",
        type: "text",
        required: act.reasonRequired,
      }),
    act.failure && h("p", { class: "refusal", role: "alert" }, act.failure),
    h(
      "div",
      { class: "actions" },
      h(
        "button",
        { class: act.danger && simple ? "danger" : "primary", disabled: act.busy },
        act.busy ? "Asking…" : simple ? (act.confirm ?? "Do it") : "Show the plan",
      ),
      button("Cancel", close),
    ),
  );
}

function field(f) {
  const id = `field-${f.name}`;
  const value = f.name === "reason" ? act.reason : act.values[f.name];
  const set = (event) => {
    if (f.name === "reason") act.reason = event.target.value;
    else act.values[f.name] = event.target.value;
  };
  if (f.type === "checks") {
    const toggle = (id, on) => {
      act.values[f.name] = on ? [...value, id] : value.filter((v) => v !== id);
      draw();
    };
    return h(
      "fieldset",
      {},
      h("legend", {}, f.label),
      f.options.map(([v, label]) =>
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "checkbox",
            checked: value.includes(v),
            onchange: (event) => toggle(v, event.target.checked),
          }),
          ` ${label}`,
        ),
      ),
    );
  }
  return [
    h("label", { for: id }, f.label),
    f.type === "select"
      ? h(
          "select",
          { id, onchange: set },
          f.options.map(([v, label]) => h("option", { value: v, selected: v === value }, label)),
        )
      : h("input", {
          id,
          type: f.type,
          value,
          required: f.required,
          min: f.min,
          max: f.max,
          maxlength: 1024,
          oninput: set,
          autocomplete: "off",
        }),
  ];
}

function showPlan() {
  const p = act.plan;
  const mood = { low: "good", medium: "warn", high: "bad" }[p.risk];
  const gap =
    p.expected_gap_ms === null
      ? ""
      : `Writes pause for about ${span(p.expected_gap_ms)}, and paused for at most ${span(p.worst_gap_ms)} in ` +
        `${plural(p.gap_samples, "similar case")} of this cluster.`;
  return h(
    "form",
    { "data-key": "plan", onsubmit: execute },
    h("p", { class: "big" }, p.possible ? "This would happen" : "This would be refused"),
    h("p", { id: "plan-summary" }, sentence(p.summary || (p.refusal?.detail ?? ""))),
    !p.possible && p.refusal && h("p", { class: "refusal" }, `${p.refusal.name}: ${p.refusal.detail}`),
    p.refusal?.votes && voteTable(p.refusal.votes),
    h("p", {}, pill(mood, `risk: ${p.risk}`), ` ${gap}`),
    p.affected.roles + p.affected.sessions > 0 && note(affected(p)),
    p.warnings.length > 0 &&
      h(
        "ul",
        { class: "findings" },
        p.warnings.map((w) => h("li", {}, sentence(w))),
      ),
    p.candidates.length > 0 &&
      table(
        "Candidates",
        [
          ["Node", ""],
          ["Can be chosen", ""],
          ["Lag", "num"],
          ["Priority", "num"],
        ],
        p.candidates.map((c) => ({
          key: c.id,
          cells: [c.id, c.eligible ? pill("good", "yes") : c.reason, count(c.lag_entries), count(c.priority)],
        })),
      ),
    p.survivors &&
      table(
        "Survivors",
        [
          ["Node", ""],
          ["Last term", "num"],
          ["Last index", "num"],
        ],
        p.survivors.map((s) => ({ key: s.id, cells: [s.id, count(s.last_term), count(s.last_index)] })),
      ),
    act.reason ? note(`Reason: ${act.reason}`) : "",
    h(
      "div",
      { class: "actions" },
      p.possible && h("button", { class: act.danger ? "danger" : "primary" }, "Run this plan"),
      button("Back", () => step({ step: "ask" })),
      button("Cancel", close),
    ),
  );
}

// affected says what becomes of roles and sessions. Leadership of the cluster moves without them.
function affected(p) {
  const what = `${plural(p.affected.roles, "held role")} and ${plural(p.affected.sessions, "session")}`;
  const ends = p.action === "recover" || p.action.startsWith("role_");
  return ends ? `This affects ${what}.` : `${what} stay as they are.`;
}

const voteTable = (votes) =>
  table(
    "Votes",
    [
      ["Voter", ""],
      ["Vote", ""],
      ["Reason", ""],
    ],
    votes.map((v) => ({
      key: v.voter_id,
      cells: [v.voter_id, v.granted ? pill("good", "granted") : pill("bad", "refused"), v.reason],
    })),
  );

// news are the events since the action began, oldest first.
const news = () => eventsAfter(act.newest).slice(0, 12).reverse();

function progress() {
  return h(
    "ol",
    { class: "progress", "aria-live": "polite" },
    news().map((e) => h("li", { "data-key": e.seq }, clock(e.at, true), ` ${e.node}: ${e.message}`)),
  );
}

function running() {
  return h(
    "div",
    { "data-key": "run" },
    h("p", { class: "big" }, `Running, ${((Date.now() - act.began) / 1000).toFixed(1)} s`),
    h("p", {}, act.progress),
    progress(),
  );
}

function done() {
  return h(
    "div",
    { "data-key": "done" },
    h("p", { class: "big", id: "outcome" }, act.failure ? "Not done, or not known to be done" : "Done"),
    h("p", { class: act.failure ? "refusal" : "", role: "status" }, sentence(act.failure || act.result)),
    act.votes && voteTable(act.votes),
    note(`It took ${span(act.took)}.`),
    progress(),
    h("div", { class: "actions" }, button("Close", close, "primary")),
  );
}

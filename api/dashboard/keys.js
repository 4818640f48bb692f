// Keys: browse by prefix, look at a value in three ways, change it behind a confirmation.

import { button, clock, count, decoded, h, note, pill, plural, section, size, table } from "./dom.js";
import { call, get, may, net, readFrom, redraw, reload } from "./net.js";

const pageSize = 200;
const state = { items: null, next: "", prefix: null, key: null, form: "text", edit: null, writer: null, gone: false, failure: "" };
let edits = 0; // so far: each has a form of its own, as a form keeps what was typed into it
const wanted = () => decoded(location.hash.split("/").slice(2).join("/"));
const link = (prefix) => `#/keys/${encodeURIComponent(prefix)}`;

export const keys = {
  title: "Keys",
  async load() {
    const prefix = wanted();
    if (prefix !== state.prefix) Object.assign(state, { items: null, key: null, edit: null, failure: "" });
    const page = await get(
      readFrom(
        `/v1/kv?prefix=${encodeURIComponent(prefix)}&limit=${Math.max(pageSize, Math.min(1000, state.items?.length ?? 0))}`,
      ),
    );
    Object.assign(state, { prefix, items: page.items, next: page.next });
    if (state.key && !state.edit) await lookAgain(page);
  },
  show() {
    if (keys.failed && !state.items) return [note(keys.failed)];
    return [
      section(
        "Keys",
        crumbs(),
        search(),
        keys.failed && h("p", { class: "refusal" }, keys.failed),
        !state.items || state.prefix !== wanted() ? note("Loading…") : listing(),
      ),
      state.key && value(state.key),
      state.edit && editor(),
    ];
  },
};

function search() {
  const go = (event) => {
    event.preventDefault();
    location.hash = link(event.currentTarget.elements.prefix.value);
  };
  return h(
    "form",
    { class: "line", "data-key": wanted(), onsubmit: go },
    h("label", { for: "prefix" }, "Prefix"),
    h("input", { id: "prefix", name: "prefix", value: wanted(), autocomplete: "off" }),
    h("button", {}, "Show"),
    may("client") && button("New key…", () => startEdit(null)),
  );
}

// crumbs leads from the prefix back to all keys.
function crumbs() {
  const parts = wanted().split("/").slice(0, -1);
  return h(
    "p",
    { class: "crumbs" },
    h("a", { href: "#/keys" }, "all keys"),
    parts.map((part, i) => [" / ", h("a", { href: link(`${parts.slice(0, i + 1).join("/")}/`) }, part || "(empty)")]),
  );
}

// listing shows keys below a further slash as one line.
function listing() {
  const rows = [];
  const folders = new Map();
  for (const item of state.items) {
    const rest = item.key.slice(state.prefix.length);
    const slash = rest.indexOf("/");
    if (slash < 0 || slash === rest.length - 1) {
      rows.push({
        key: item.key,
        cells: [
          button(item.key, () => openKey(item), "link"),
          size(bytesOf(item).length),
          count(item.revision),
          count(item.version),
        ],
      });
      continue;
    }
    const folder = state.prefix + rest.slice(0, slash + 1);
    if (!folders.has(folder))
      rows.push({ key: folder, cells: [h("a", { href: link(folder) }, folder), "", "", ""], folder });
    folders.set(folder, (folders.get(folder) ?? 0) + 1);
  }
  for (const row of rows) if (row.folder) row.cells[1] = `${count(folders.get(row.folder))} keys`;
  if (rows.length === 0) return note(state.prefix ? "No key begins with this." : "There are no keys.");
  return [
    table(
      "Keys",
      [
        ["Key", ""],
        ["Size", "num"],
        ["Revision", "num"],
        ["Writes", "num"],
      ],
      rows,
    ),
    state.next && button("More", more),
  ];
}

async function more() {
  const page = await get(
    readFrom(
      `/v1/kv?prefix=${encodeURIComponent(state.prefix)}&limit=${pageSize}&after=${encodeURIComponent(state.next)}`,
    ),
  );
  Object.assign(state, { items: [...state.items, ...page.items], next: page.next });
  redraw();
}

const bytesOf = (item) => Uint8Array.from(atob(item.value ?? ""), (c) => c.charCodeAt(0));

function textOf(item) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytesOf(item));
  } catch {
    return null; // not text
  }
}

function hex(bytes) {
  const lines = [];
  for (let i = 0; i < Math.min(bytes.length, 4096); i += 16) {
    const part = [...bytes.slice(i, i + 16)];
    lines.push(
      `${i.toString(16).padStart(6, "0")}  ${part
        .map((b) => b.toString(16).padStart(2, "0"))
        .join(" ")
        .padEnd(47)}  ${part.map((b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : ".")).join("")}`,
    );
  }
  return lines.join("\n") + (bytes.length > 4096 ? `\n… ${size(bytes.length)} in all` : "");
}

function rendered(item) {
  const text = textOf(item);
  if (state.form === "hex" || text === null) return hex(bytesOf(item));
  if (state.form === "text") return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch (err) {
    return `not JSON: ${err.message}`;
  }
}

function openKey(item) {
  Object.assign(state, { key: item, gone: false, edit: null, writer: null, failure: "" });
  redraw();
  findWriter(item);
}

// lookAgain brings the opened key up to date. One that is missing on a page may be on another.
async function lookAgain(page) {
  const old = state.key;
  const named = (i) => i.key === old.key;
  let item = page.items.find(named);
  if (!item && page.next) {
    item = (await get(readFrom(`/v1/kv?prefix=${encodeURIComponent(old.key)}&limit=1`))).items.find(named);
  }
  if (state.key !== old) return; // another one was opened meanwhile
  state.gone = !item;
  if (!item || item.revision === old.revision) return;
  state.key = item; // its last writer stays until the next one is known
  redraw();
  await findWriter(item); // it counts in the time that the page may load for
}

// findWriter looks for a key in the audit log, which does not have writes of the etcd API.
async function findWriter(item) {
  if (!may("operator")) return;
  const { key } = item;
  try {
    const audit = await get(readFrom("/admin/audit?class=clients&limit=1000"));
    const path = (r) => decoded(r.what.replace(/^\S+ /, ""));
    const last = audit.items.findLast(
      (r) => r.status < 300 && r.what.startsWith("PUT ") && path(r) === `/v1/kv/${key}`,
    );
    if (state.key === item) state.writer = last ?? "No write of it is among the newest 1000 calls in the audit log.";
  } catch (err) {
    if (state.key === item) state.writer = `Who wrote it last is not known: ${err.message}`;
  }
  redraw();
}

function value(item) {
  const forms = ["text", "JSON", "hex"];
  const w = state.writer;
  return section(
    `Key ${item.key}`,
    state.gone && h("p", { class: "banner warn" }, "This key was deleted. What is below is its last value that was seen."),
    h(
      "p",
      {},
      `Revision ${count(item.revision)}, created at ${count(item.create_revision)}, written ${plural(item.version, "time")}.`,
    ),
    w &&
      h(
        "p",
        {},
        typeof w === "string"
          ? w
          : ["Last write in the audit log: ", pill("", `${w.who} (${w.role})`), " at ", clock(w.when), "."],
      ),
    h(
      "div",
      { class: "actions", role: "group", "aria-label": "Show the value as" },
      forms.map((f) =>
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(state.form === f),
            onclick: () => {
              state.form = f;
              redraw();
            },
          },
          f,
        ),
      ),
    ),
    h("pre", { tabindex: "0" }, rendered(item)),
    may("client") &&
      h(
        "div",
        { class: "actions" },
        !state.gone && textOf(item) !== null && button("Edit…", () => startEdit(item)),
        !state.gone &&
          button(
            "Delete…",
            () => {
              state.edit = { item, remove: true };
              redraw();
            },
            "danger",
          ),
        button("Close", () => {
          Object.assign(state, { key: null, edit: null });
          redraw();
        }),
      ),
  );
}

function startEdit(item) {
  const edit = { id: ++edits, item, key: item?.key ?? wanted(), text: item ? textOf(item) : "" };
  Object.assign(state, { edit, failure: "" });
  redraw();
}

function editor() {
  const e = state.edit;
  const cancel = button("Cancel", () => {
    state.edit = null;
    state.failure = "";
    reload(); // the key may have changed meanwhile
  });
  const failure = state.failure && h("p", { class: "refusal", role: "alert" }, state.failure);
  if (e.remove) {
    return section(
      "Delete this key",
      h(
        "form",
        { class: "form", onsubmit: save },
        h("p", {}, `${e.item.key} at revision ${count(e.item.revision)} is deleted, unless it has changed since.`),
        failure,
        h("div", { class: "actions" }, h("button", { class: "danger" }, "Delete the key"), cancel),
      ),
    );
  }
  const back = () => {
    e.confirm = false;
    redraw();
  };
  return section(
    e.item ? "Edit this key" : "New key",
    h(
      "form",
      { class: "form", "data-key": e.id, onsubmit: e.confirm ? save : review },
      h("label", { for: "edit-key" }, "Key"),
      h("input", {
        id: "edit-key",
        value: e.key,
        required: true,
        readonly: e.item || e.confirm,
        oninput: (ev) => {
          e.key = ev.target.value;
        },
      }),
      h("label", { for: "edit-value" }, "Value"),
      h("textarea", {
        id: "edit-value",
        rows: 8,
        value: e.text,
        readonly: e.confirm,
        oninput: (ev) => {
          e.text = ev.target.value;
        },
      }),
      e.confirm &&
        h(
          "p",
          { class: "banner warn" },
          e.item
            ? `This replaces revision ${count(e.item.revision)}, unless the key has changed since.`
            : "This creates the key, unless it exists.",
        ),
      failure,
      h(
        "div",
        { class: "actions" },
        h("button", { class: "primary" }, e.confirm ? "Write it" : "Continue"),
        e.confirm && button("Back", back),
        cancel,
      ),
    ),
  );
}

function review(event) {
  event.preventDefault();
  state.edit.confirm = true;
  redraw();
}

async function save(event) {
  event.preventDefault();
  const e = state.edit;
  const path = `/v1/kv/${encodeURIComponent(e.item?.key ?? e.key)}`;
  const headers = e.item ? { "If-Match": `"${e.item.revision}"` } : { "If-None-Match": "*" };
  try {
    if (e.remove) await call(path, { method: "DELETE", headers });
    else
      await call(path, {
        method: "PUT",
        headers: { ...headers, "Content-Type": "application/octet-stream" },
        body: e.text,
      });
    Object.assign(state, { edit: null, failure: "", key: e.remove ? null : state.key });
    reload();
  } catch (err) {
    state.failure =
      err.status === 412
        ? `Not written: the key has changed meanwhile, or exists already. ${err.message}`
        : err.message;
    redraw();
  }
}

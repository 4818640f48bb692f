// Elements, and how a page is brought up to date: it is built again and compared with what is shown, so that only
// differences touch the document. Text is always set as text, never as markup.

const svgTags = new Set(["svg", "path", "rect", "line", "circle", "polyline", "polygon", "text", "title", "g"]);
const handlers = ["onclick", "onsubmit", "oninput", "onchange", "ontoggle"];

// h returns an element. Properties that begin with "on" are handlers, the others attributes; false and null leave
// one out. Children are elements, texts, or lists of both; null and false are left out.
export function h(tag, props, ...children) {
  const node = svgTags.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node[name] = value;
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

// show makes the children of a node equal to these.
export function show(node, ...children) {
  const wanted = document.createDocumentFragment();
  wanted.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  patchChildren(node, wanted);
}

function patchChildren(node, wanted) {
  const next = [...wanted.childNodes];
  next.forEach((want, i) => {
    const have = node.childNodes[i];
    if (!have) node.append(want);
    else if (!patch(have, want)) have.replaceWith(want);
  });
  while (node.childNodes.length > next.length) node.lastChild.remove();
}

// patch makes a node equal to another, and reports whether it could.
function patch(have, want) {
  if (have.nodeType !== want.nodeType || have.nodeName !== want.nodeName) return false;
  if (have.nodeType === Node.TEXT_NODE) {
    if (have.data !== want.data) have.data = want.data;
    return true;
  }
  if (have.dataset.key !== want.dataset.key) return false;
  for (const { name } of [...have.attributes]) {
    if (!want.hasAttribute(name) && name !== "open") have.removeAttribute(name);
  }
  for (const { name, value } of want.attributes) {
    if (have.getAttribute(name) !== value && name !== "open") have.setAttribute(name, value);
  }
  for (const name of handlers) if (have[name] !== want[name]) have[name] = want[name];
  patchChildren(have, want);
  return true;
}

export const pill = (mood, ...text) => h("span", { class: `pill ${mood}` }, ...text);
export const button = (label, onclick, kind = "") => h("button", { type: "button", class: kind, onclick }, label);
export const note = (...text) => h("p", { class: "muted" }, ...text);

// section is a part of a page with a heading.
export function section(title, ...content) {
  const id = `section-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  return h("section", { "aria-labelledby": id, "data-key": id }, h("h2", { id }, title), ...content);
}

// table returns a table. A column is [title, class]; a row is {key, cells}, the first cell naming the row. On narrow
// screens each row becomes a card, which shows the titles beside the cells.
export function table(label, columns, rows) {
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map(([title, cls]) => h("th", { scope: "col", class: cls }, title)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(({ key, cells }) =>
          h(
            "tr",
            { "data-key": key },
            cells.map((cell, i) => {
              const props = { class: columns[i][1], "data-label": columns[i][0] };
              if (i === 0) props.scope = "row";
              return h(i === 0 ? "th" : "td", props, cell);
            }),
          ),
        ),
      ),
    ),
  );
}

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const count = (n) => number.format(n);
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

// sentence is a text of the server as a sentence.
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

// decoded undoes the percent-encoding of a text; a text with other percent signs stays as it is.
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// span is a duration in the unit that fits.
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 10) return `${Math.round(ms * 100) / 100} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 90_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 5_400_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${Math.round(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} days`;
}

let ahead = 0; // ms that the clock of the node that the page talks to is ahead of the browser's

// setClock tells what time it is at that node. All times that it sends are of that clock, or of one close to it.
export function setClock(at) {
  ahead = Date.parse(at) - Date.now();
}

// atNode is a time of the browser's clock by the clock of the node; now is the present one.
export const atNode = (ms) => ms + ahead;
export const now = () => atNode(Date.now());

export const since = (at) => span(Math.max(0, now() - Date.parse(at)));

// age is how long ago something was, in words that change at most once a minute.
export function age(at) {
  const ms = now() - Date.parse(at);
  return ms < 60_000 ? "less than a minute" : span(Math.max(90_000, ms));
}

// moment is a time of day with its date where that is not today.
export function moment(at, ms = false) {
  const d = new Date(at);
  const time =
    d.toLocaleTimeString([], { hour12: false }) + (ms ? `.${String(d.getMilliseconds()).padStart(3, "0")}` : "");
  return d.toDateString() === new Date().toDateString() ? time : `${d.toLocaleDateString()} ${time}`;
}

export const clock = (at, ms) => h("time", { datetime: at, title: at }, moment(at, ms));

export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let i = -1;
  do {
    bytes /= 1024;
    i++;
  } while (bytes >= 1024 && i < units.length - 1);
  return `${number.format(bytes)} ${units[i]}`;
}

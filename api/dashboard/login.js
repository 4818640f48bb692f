// The log-in: a token, which stays in the memory of this tab.

import { h, note, pill, section, show } from "./dom.js";
import { net, useToken } from "./net.js";

// login asks for a token. Without one the page shows only what the node tells everyone.
export function login() {
  return [
    section(
      "Log in",
      h(
        "p",
        {},
        "This cluster asks for a token. An operator makes one with ",
        h("code", {}, "northstarctl token new"),
        " and adds its hash to ",
        h("code", {}, "auth.tokens"),
        ".",
      ),
      h(
        "form",
        { class: "form", onsubmit: submit },
        h("label", { for: "token" }, "Token"),
        h("input", {
          id: "token",
          name: "token",
          type: "password",
          autocomplete: "off",
          required: true,
          "aria-describedby": "login-refusal",
        }),
        h(
          "label",
          { class: "check" },
          h("input", { type: "checkbox", name: "keep" }),
          " Keep it until this tab is closed, also when the page is loaded again",
        ),
        h("button", { class: "primary" }, "Log in"),
      ),
      h(
        "p",
        { id: "login-refusal", class: net.token ? "refusal" : "muted", role: "status" },
        net.token
          ? `Refused: ${net.refused}`
          : "The token is sent to members of this cluster only, and is never stored on disk by this page.",
      ),
    ),
    h("div", { id: "public", "data-key": "public" }),
  ];
}

function submit(event) {
  event.preventDefault();
  const form = event.currentTarget;
  const token = form.elements.token.value.trim();
  if (token) useToken(token, form.elements.keep.checked);
}

let asked = 0;

// showPublic fills in what /v1/cluster tells everyone, unless auth.public is off.
export async function showPublic(words) {
  const place = document.getElementById("public");
  if (!place || Date.now() - asked < 5000) return;
  asked = Date.now();
  try {
    const answer = await fetch(`${net.origin}/v1/cluster`, { cache: "no-store" });
    if (!answer.ok) return;
    const c = await answer.json();
    const q = words.quorum(c);
    show(
      place,
      section(
        "This cluster",
        h("p", { class: "big" }, q.big),
        h("p", {}, c.leader_id ? pill("lead", `${c.leader_id} leads`) : pill("bad", "no leader"), ` ${q.small}`),
        note("As of the moment this page was opened."),
      ),
    );
  } catch {
    /* the node is gone: the connection says so */
  }
}

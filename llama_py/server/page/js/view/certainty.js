// A reply coloured by how certain the model was of each token, with the alternatives of the token
// that is pointed at.

import { probability } from "../words.js";
import { h } from "./dom.js";

/** Probabilities from which on a token counts as certain, confident, unsure. */
const LEVELS = [
  [0.9, "certain"],
  [0.6, "confident"],
  [0.3, "unsure"],
];

/** @param {{token: string, logprob: number, top_logprobs: object[]}[]} logprobs */
export function certaintyView(logprobs) {
  const details = h("div", { class: "alternatives", "aria-live": "polite" }, hint());
  const text = h("div", { class: "tokens", role: "listbox", "aria-label": "Tokens of the reply" });
  text.append(...logprobs.map((entry) => tokenButton(entry)));
  const show = ({ target }) => {
    const at = [...text.children].indexOf(target.closest(".token"));
    if (at < 0) return;
    details.replaceChildren(alternatives(logprobs[at]));
    [...text.children].forEach((each, index) => each.setAttribute("aria-selected", String(index === at)));
  };
  text.addEventListener("pointerover", show);
  text.addEventListener("focusin", show);
  text.addEventListener("keydown", (event) => walk(event, text));
  if (text.firstChild) text.firstChild.tabIndex = 0;
  return h("div", { class: "certainty" }, legend(), text, details);
}

function hint() {
  return h("p", { class: "hint" }, "Point at a token, or go through them with the arrow keys.");
}

function legend() {
  const names = [...LEVELS.map(([, name]) => name), "surprised"];
  const marks = names.map((name) => h("span", { class: `token ${name}` }, name));
  return h("p", { class: "legend" }, "The model was ", ...marks);
}

function tokenButton({ token, logprob }) {
  const share = Math.exp(logprob);
  const level = LEVELS.find(([least]) => share >= least)?.[1] ?? "surprised";
  const shown = token.replace(/\n/g, "⏎\n");
  const label = `${token.trim() || "space"}, ${probability(share)}`;
  return h(
    "span",
    { class: `token ${level}`, role: "option", "aria-label": label, "aria-selected": "false", tabIndex: -1 },
    shown,
  );
}

function walk(event, text) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const tokens = [...text.children];
  const next = tokens[tokens.indexOf(document.activeElement) + step];
  if (!next) return;
  document.activeElement.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function alternatives({ token, logprob, top_logprobs: top = [] }) {
  const listed = top.some((each) => each.token === token) ? top : [{ token, logprob }, ...top];
  const rows = listed.map((each) => {
    const share = Math.exp(each.logprob);
    const fill = h("i", {});
    fill.style.width = `${(100 * share).toFixed(1)}%`;
    return h(
      "tr",
      { class: each.token === token ? "chosen" : "" },
      h("th", { scope: "row" }, h("code", {}, visible(each.token))),
      h("td", { class: "end" }, probability(share)),
      h("td", { class: "share", "aria-hidden": "true" }, h("span", {}, fill)),
    );
  });
  return h("table", {}, h("caption", {}, "What could have stood here"), h("tbody", {}, rows));
}

/** A token with its spaces to be seen. */
function visible(token) {
  return token.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
}

// Calls of tools as cards: what is called with what, and a field for the result, because the page
// runs nothing itself.

import { isJson, jsonLines, laidOut } from "../json.js";
import { addText, copyButton } from "../markdown/code.js";
import { h, icon, say } from "./dom.js";

/** A text that may be JSON, laid out; `complete` is false while it may still grow. */
export function jsonBlock(text, label, complete = true) {
  const code = h("code", {});
  if (complete && isJson(text)) code.append(...jsonLines(laidOut(text)));
  else addText(code, text);
  return h("pre", { class: "json", tabIndex: 0, role: "region", "aria-label": label }, code);
}

/** Adds to a block of JSON that is not complete what came since. */
export function growJson(block, text, old) {
  addText(block.querySelector("code"), text.slice(old.length));
}

/** Cards for the calls of one reply. */
export class ToolCalls {
  #cards = [];
  #form = null;
  element = h("div", { class: "calls" });

  /**
   * @param {object[]} calls of the reply
   * @param {boolean} complete they are written to the end
   */
  show(calls, complete) {
    calls.forEach((call, index) => {
      this.#cards[index] ??= this.#makeCard();
      this.#cards[index].show(call, complete);
    });
  }

  /** Asks for the results, or stops asking. */
  ask(calls, give) {
    if (!give) {
      this.#form?.remove();
      this.#form = null;
    } else if (!this.#form) {
      this.#form = resultForm(calls, give);
      this.element.append(this.#form);
    }
  }

  #makeCard() {
    const card = new CallCard();
    this.element.append(card.element);
    return card;
  }
}

class CallCard {
  #name = h("code", { class: "name" });
  #state = h("span", { class: "state" });
  #body = h("div", {});
  #key = null;
  #growing = null;
  element = h(
    "section",
    { class: "call", "aria-label": "Call of a tool" },
    h("header", {}, icon("tool"), this.#name, this.#state),
    this.#body,
  );

  show(call, complete) {
    const { name, arguments: text } = call;
    const key = `${complete}${text}`;
    say(this.#name, name);
    say(this.#state, complete ? "" : "is being written");
    if (key === this.#key) return;
    this.#key = key;
    const old = this.#growing;
    this.#growing = complete ? null : text;
    if (old !== null && !complete && text.startsWith(old)) growJson(this.#body, text, old);
    else this.#body.replaceChildren(jsonBlock(text, `Arguments of ${name}`, complete));
  }
}

/** The page does not run tools: a person says what they returned. */
function resultForm(calls, give) {
  const fields = calls.map((call, index) => {
    const id = `result-${call.id || index}`;
    const text = calls.length > 1 ? `Result of ${call.name} (${index + 1})` : `Result of ${call.name}`;
    const props = { id, rows: 2, spellcheck: false, placeholder: '{"temperature": 21}' };
    return [h("label", { for: id }, text), h("textarea", props)];
  });
  const form = h(
    "form",
    { class: "results" },
    h("p", { class: "hint" }, "This page runs no tools. Write what the tool returned, and the model goes on."),
    ...fields.flat(),
    h("button", { class: "button main" }, "Send results"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    give(Array.from(form.querySelectorAll("textarea"), (field) => field.value));
  });
  form.addEventListener("keydown", (event) => {
    const send = event.key === "Enter" && !event.shiftKey && !event.isComposing;
    if (!send || event.target.tagName !== "TEXTAREA") return;
    event.preventDefault();
    form.requestSubmit();
  });
  return form;
}

/** The result of a tool, as its own message. */
export function toolResult(message) {
  const label = `Result of ${message.name || "the tool"}`;
  return h(
    "section",
    { class: "call result" },
    h("header", {}, icon("onward"), h("span", {}, label), copyButton(() => message.content)),
    jsonBlock(message.content, label),
  );
}

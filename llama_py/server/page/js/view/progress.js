// What happens before the first word: how much of the prompt is read, and how much of it was in
// memory already. The same bar, small, stays at the reply.

import { count, duration, percent, promptSize, reuse } from "../words.js";
import { h, say } from "./dom.js";

/** A bar of two parts: what was reused and what was read. Widths are shares of the whole. */
export function bar(props = {}) {
  return h("span", { ...props, class: `bar ${props.class ?? ""}` }, h("i", { class: "reused" }), h("i", { class: "read" }));
}

export function setBar(element, reused, read) {
  const [first, second] = element.children;
  first.style.width = `${(100 * reused).toFixed(2)}%`;
  second.style.width = `${(100 * read).toFixed(2)}%`;
}

/** Shows how a reply that has no words yet comes along. */
export class Progress {
  #label = h("span", { class: "label" });
  #share = h("span", { class: "share" });
  #bar = bar();
  #detail = h("p", { class: "detail" });
  #tryNow;

  /** @param {() => void} tryNow asks a busy server again */
  constructor(tryNow) {
    this.#tryNow = h("button", { type: "button", class: "button small", onclick: tryNow }, "Try now");
    this.element = h(
      "div",
      { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 },
      h("p", { class: "head" }, this.#label, this.#share),
      this.#bar,
      this.#detail,
    );
    this.box = h("div", { class: "waiting" }, this.element, this.#tryNow);
  }

  /** @param {import("../reply.js").Reply} reply @param {boolean} loads the model comes first */
  show(reply, loads) {
    const { phase, progress, message } = reply;
    const read = phase === "prompt" && progress;
    this.element.classList.toggle("idle", !read);
    this.#tryNow.hidden = phase !== "busy";
    say(this.#label, this.#labelOf(reply, loads));
    this.element.setAttribute("aria-label", this.#label.textContent);
    if (read) this.#showRead(progress, message.usage);
    else this.#showNothing(phase);
  }

  #labelOf({ phase, nextTry, waited }, loads) {
    const since = waited > 3000 ? ` · ${duration(1000 * Math.floor(waited / 1000))}` : "";
    if (phase === "sending") return (loads ? "Loading the model" : "Sending") + since;
    if (phase === "waiting") return `Waiting for the model${since}`;
    if (phase !== "busy") return "Processing the prompt";
    const seconds = Math.max(0, Math.ceil((nextTry - Date.now()) / 1000));
    return `The server is busy; trying again in ${seconds} s`;
  }

  #showNothing(phase) {
    this.element.removeAttribute("aria-valuenow");
    say(this.#share, "");
    say(this.#detail, phase === "busy" ? "Nothing is lost: the message is kept here." : "");
  }

  #showRead({ total, cache, processed }, { pictures, sounds }) {
    const share = total ? processed / total : 0;
    this.element.setAttribute("aria-valuenow", Math.floor(100 * share));
    setBar(this.#bar, cache / total, (processed - cache) / total);
    say(this.#share, percent(share));
    const left = total - processed;
    const size = { prompt: total, pictures, sounds };
    const reused = cache ? reuse({ ...size, reused: cache }) : promptSize(size);
    say(this.#detail, left ? `${reused} · ${count(left)} to go` : reused);
  }
}

/** What was reused for a finished reply. */
export function reuseNote(usage) {
  const { prompt, reused } = usage;
  const note = h("span", { class: "reuse", title: "Tokens of the prompt that were in memory already" });
  const share = bar({ class: "small", "aria-hidden": "true" });
  setBar(share, reused / prompt, (prompt - reused) / prompt);
  note.append(share, reuse(usage));
  return note;
}

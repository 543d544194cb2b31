// The list of conversations: by day, searched as one types, renamed and removed in place.

import { dayOf, plural } from "../words.js";
import { fill, h, iconButton, say } from "./dom.js";
import { openMenu } from "./menu.js";

/** Entries that are made at once; more come when the end of the list comes into view. */
const PAGE = 80;

export class Sidebar {
  #list = document.getElementById("conversations");
  #search = document.getElementById("search");
  #found = document.getElementById("found");
  #actions;
  #entries = new Map();
  #state = { records: [], current: null, running: new Set() };
  #shown = PAGE;
  #matches = null;
  #searching = null;
  #end = h("li", { class: "end", "aria-hidden": "true" });

  /** @param {object} actions `open`, `rename`, `remove`, `export` (of an id), `search` */
  constructor(actions) {
    this.#actions = actions;
    this.#search.addEventListener("input", () => this.#find());
    this.#search.addEventListener("keydown", (event) => this.#searchKeys(event));
    this.#list.addEventListener("keydown", (event) => this.#listKeys(event));
    new IntersectionObserver((seen) => {
      if (seen.some((each) => each.isIntersecting)) this.#showMore();
    }).observe(this.#end);
  }

  /** @param {{records: object[], current: string|null, running: Set<string>}} state */
  show(state) {
    this.#state = state;
    this.#render();
  }

  focusSearch() {
    this.#search.focus();
    this.#search.select();
  }

  // -- the list -----------------------------------------------------------------------------------

  #render() {
    const { records, current, running } = this.#state;
    const wanted = this.#matches ? records.filter(({ id }) => this.#matches.has(id)) : records;
    const children = [];
    let group = null;
    for (const record of wanted.slice(0, this.#shown)) {
      const day = dayOf(record.updated);
      if (day !== group) children.push(this.#heading(day));
      group = day;
      children.push(this.#entry(record, record.id === current, running.has(record.id)));
    }
    if (wanted.length > this.#shown) children.push(this.#end);
    fill(this.#list, ...children);
    this.#sayFound(wanted.length);
  }

  #showMore() {
    this.#shown += PAGE;
    this.#render();
  }

  #heading(day) {
    const key = `day ${day}`;
    if (!this.#entries.has(key)) {
      this.#entries.set(key, h("li", { class: "day" }, h("h2", {}, day)));
    }
    return this.#entries.get(key);
  }

  #entry(record, isCurrent, isRunning) {
    let entry = this.#entries.get(record.id);
    if (!entry) this.#entries.set(record.id, (entry = this.#makeEntry(record.id)));
    const link = entry.querySelector("a");
    say(link.querySelector(".title"), record.title || "New conversation");
    say(link.querySelector(".snippet"), this.#matches?.get(record.id) ?? "");
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    entry.classList.toggle("running", isRunning);
    return entry;
  }

  #makeEntry(id) {
    const link = h(
      "a",
      { href: `#/${id}`, class: "open" },
      h("span", { class: "title" }),
      h("span", { class: "snippet" }),
    );
    const more = iconButton("more", "More", () => this.#menu(id, more), { class: "quiet" });
    more.setAttribute("aria-haspopup", "menu");
    more.setAttribute("aria-expanded", "false");
    return h("li", { class: "entry" }, link, more);
  }

  #menu(id, button) {
    openMenu(button, [
      { label: "Rename", icon: "edit", run: () => this.rename(id) },
      { label: "Export", icon: "save", run: () => this.#actions.export(id) },
      { label: "Delete", icon: "remove", danger: true, run: () => this.#actions.remove(id) },
    ]);
  }

  /** Lets the title be edited in place. */
  rename(id) {
    const entry = this.#entries.get(id);
    const link = entry?.querySelector("a");
    if (!link) return;
    const old = link.querySelector(".title").textContent;
    const field = h("input", { class: "rename", value: old, "aria-label": "Title", maxLength: 200 });
    let ended = false;
    const end = (keep) => {
      if (ended) return;
      ended = true; // taking the field away also takes its focus
      const title = field.value.trim();
      field.replaceWith(link);
      if (keep && title && title !== old) this.#actions.rename(id, title);
    };
    field.addEventListener("blur", () => end(true));
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
      link.focus();
    });
    link.replaceWith(field);
    field.select();
    field.focus();
  }

  // -- searching ----------------------------------------------------------------------------------

  async #find() {
    const words = this.#search.value.trim();
    this.#searching?.abort();
    this.#shown = PAGE;
    if (!words) {
      this.#matches = null;
      this.#render();
      return;
    }
    const searching = (this.#searching = new AbortController());
    await new Promise((resolve) => setTimeout(resolve, 120));
    if (searching.signal.aborted) return;
    const matches = await this.#actions.search(words, searching.signal);
    if (searching.signal.aborted) return;
    this.#matches = matches;
    this.#render();
  }

  #sayFound(number) {
    const none = this.#state.records.length ? "Nothing found" : "";
    const text = this.#matches ? (number ? plural(number, "conversation") : none) : "";
    say(this.#found, text);
  }

  #searchKeys(event) {
    if (event.key === "Escape" && this.#search.value) {
      event.stopPropagation();
      this.#search.value = "";
      this.#find();
    } else if (event.key === "ArrowDown" || (event.key === "Enter" && !event.isComposing)) {
      event.preventDefault();
      const first = this.#list.querySelector("a");
      if (event.key === "Enter") first?.click();
      else first?.focus();
    }
  }

  // Up and down go from one conversation to the next; Tab reaches the menus in between.
  #listKeys(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (!(event.key in steps) || event.target.tagName !== "A") return;
    event.preventDefault();
    const links = [...this.#list.querySelectorAll("a")];
    const next = links[links.indexOf(event.target) + steps[event.key]];
    if (next) next.focus();
    else if (event.key === "ArrowUp") this.#search.focus();
  }
}

/** Titles and messages that contain a text: id of the conversation to the words around it. */
export async function searchIn(store, records, words, signal) {
  const wanted = words.toLowerCase();
  const matches = new Map();
  for (const { id, title } of records) if (title.toLowerCase().includes(wanted)) matches.set(id, "");
  await store.each(({ conversation, content }) => {
    if (!matches.has(conversation)) {
      const at = content.toLowerCase().indexOf(wanted);
      if (at >= 0) matches.set(conversation, around(content, at, wanted.length));
    }
    return !signal.aborted;
  });
  return matches;
}

function around(text, at, length) {
  const start = Math.max(0, at - 24);
  const words = text.slice(start, at + length + 60).replace(/\s+/g, " ");
  return (start ? "…" : "") + words;
}

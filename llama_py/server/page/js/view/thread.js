// The messages of a conversation. Long ones are built from the end upwards in small slices, so that
// what is read first is there first; the browser lays out only what is in view (content-visibility).

import { plural } from "../words.js";
import { h, oncePerFrame, textButton } from "./dom.js";
import { viewOf } from "./message.js";

/** Messages that are there at once, and milliseconds that a slice of the others may take. */
const AT_ONCE = 12;
const SLICE = 6;
/** Pixels from the end within which the view follows it. */
const NEAR = 64;
/** Milliseconds after the wheel was turned upwards in which being near the end means nothing. */
const LEAVING = 400;

export class Thread {
  #scroller = document.getElementById("scroller");
  #list = document.getElementById("messages");
  #toEnd = document.getElementById("to-end");
  #actions;
  #views = new Map();
  #conversation = null;
  #placeOf = null;
  #building = 0;
  #follows = true;
  #lastTop = 0;
  #leftAt = -LEAVING;
  #line;
  #grow = oncePerFrame(() => this.#showGrowth());

  /** @param {object} actions what views offer (see `message.js`), and `seeAll` */
  constructor(actions) {
    this.#actions = actions;
    this.#line = h(
      "div",
      { class: "cut-line", role: "separator" },
      h("span", {}),
      textButton("Bring them back", actions.seeAll, { class: "button small" }),
    );
    this.#scroller.addEventListener("scroll", () => this.#noteScroll(), { passive: true });
    this.#scroller.addEventListener("wheel", (event) => this.#noteWheel(event), { passive: true });
    this.#toEnd.addEventListener("click", () => this.follow());
    new ResizeObserver(() => this.#keepEnd()).observe(this.#list);
    new ResizeObserver(() => this.#keepEnd()).observe(this.#scroller);
  }

  /**
   * Shows a conversation as it is now.
   *
   * @param {import("../conversation.js").Conversation} conversation
   * @param {(message: object, context: object) => object} placeOf what a view is told
   */
  show(conversation, placeOf) {
    const path = conversation.path;
    const other = this.#conversation?.id !== conversation.id;
    this.#conversation = conversation;
    this.#placeOf = placeOf;
    clearTimeout(this.#building);
    this.#grow.cancel();
    this.#drop(new Set(path.map((message) => message.id)));
    const missing = path.length - this.#views.size;
    if (other || missing > 2 * AT_ONCE) this.#startOver(other);
    this.#place(path, this.#firstBuilt(path));
    this.#showLine(path);
    this.#keepEnd();
    this.#buildRest(path);
  }

  /** Shows what the running reply wrote since, in the next frame. */
  grew() {
    this.#grow();
  }

  /** Goes to the end, and stays there while it grows. */
  follow() {
    this.#follows = true;
    this.#keepEnd();
    this.#toEnd.hidden = true;
  }

  /** The view of a message, if it is built. */
  viewOf(id) {
    return this.#views.get(id);
  }

  // -- building -----------------------------------------------------------------------------------

  #startOver(other) {
    this.#list.replaceChildren();
    this.#views.clear();
    if (other) this.#follows = true;
  }

  #drop(wanted) {
    for (const [id, view] of this.#views) {
      if (wanted.has(id)) continue;
      view.element.remove();
      this.#views.delete(id);
    }
  }

  /** Index from which on everything is built at once: what was built before stays. */
  #firstBuilt(path) {
    const first = path.findIndex((message) => this.#views.has(message.id));
    return first < 0 ? Math.max(0, path.length - AT_ONCE) : first;
  }

  #place(path, from) {
    let before = null;
    for (const message of path.slice(from)) {
      const element = this.#update(message);
      const after = before ? before.nextElementSibling : this.#list.firstElementChild;
      const place = after === this.#line ? after.nextElementSibling : after;
      if (place !== element) this.#list.insertBefore(element, place);
      before = element;
    }
  }

  #update(message) {
    let view = this.#views.get(message.id);
    if (!view) {
      view = viewOf(message, this.#actions);
      view.element.id = `m-${message.id}`;
      this.#views.set(message.id, view);
    }
    view.show(message, this.#placeOf(message));
    return view.element;
  }

  #buildRest(path) {
    const left = path.findIndex((message) => this.#views.has(message.id));
    if (left <= 0) return;
    this.#building = setTimeout(() => {
      const end = performance.now() + SLICE;
      let at = left;
      const height = this.#list.scrollHeight;
      while (at > 0 && performance.now() < end) {
        at -= 1;
        this.#list.prepend(this.#update(path[at]));
      }
      this.#showLine(path);
      this.#holdStill(height);
      this.#buildRest(path);
    });
  }

  // What is prepended pushes down what is being read; not every browser makes up for that itself.
  #holdStill(heightBefore) {
    if (this.#follows) this.#keepEnd();
    else if (!CSS.supports("overflow-anchor", "auto")) {
      this.#scroller.scrollTop += this.#list.scrollHeight - heightBefore;
    }
  }

  /** The line above the first message that the model sees. */
  #showLine(path) {
    const first = this.#conversation.firstSeenIn(path);
    const element = first > 0 && this.#views.get(path[first].id)?.element;
    if (!element) {
      this.#line.remove();
      return;
    }
    this.#line.firstElementChild.textContent =
      `${plural(first, "message")} above were left out to make room: the model no longer sees them.`;
    if (element.previousElementSibling !== this.#line) element.before(this.#line);
  }

  // -- growing ------------------------------------------------------------------------------------

  #showGrowth() {
    const { last } = this.#conversation;
    if (this.#views.has(last.id)) this.#update(last);
    this.#keepEnd();
  }

  #keepEnd() {
    if (!this.#follows) return this.#noteScroll();
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#lastTop = this.#scroller.scrollTop;
    return undefined;
  }

  // A reply that grows in the same moment may take the view back to its end before it has moved.
  #noteWheel({ deltaY }) {
    if (deltaY >= 0 || this.#scroller.scrollTop <= 0) return;
    this.#follows = false;
    this.#leftAt = performance.now();
  }

  // Only going up ends the following: growth alone also makes the end go away.
  #noteScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    const away = scrollHeight - clientHeight - scrollTop;
    if (away < NEAR && performance.now() - this.#leftAt > LEAVING) this.#follows = true;
    else if (scrollTop < this.#lastTop - 1) this.#follows = false;
    this.#lastTop = scrollTop;
    this.#toEnd.hidden = this.#follows || away < NEAR;
  }
}

// One message in the thread. A view is made once and shown again whenever its message changed; what
// did not change is not touched.

import { beginsAsJson, isJson } from "../json.js";
import { Markdown } from "../markdown/render.js";
import { copyButton } from "../markdown/code.js";
import { count, duration, rate, tokens } from "../words.js";
import { certaintyView } from "./certainty.js";
import { copyText, fill, h, icon, iconButton, say } from "./dom.js";
import { editInPlace } from "./editor.js";
import { mediaList } from "./media.js";
import { openMenu } from "./menu.js";
import { limitNotice, failureNotice } from "./notices.js";
import { Progress, reuseNote } from "./progress.js";
import { growJson, jsonBlock, toolResult, ToolCalls } from "./tools.js";

/**
 * @typedef {object} Place what a view is told beside its message
 * @property {string[]} siblings ids of the messages at this place
 * @property {import("../reply.js").Reply} [reply] the running one, if it writes this message
 * @property {boolean} isLast
 * @property {boolean} busy a reply is running in this conversation
 * @property {boolean} unseen the model does not see it: it was left out
 * @property {boolean} loads the model has to be loaded first
 * @property {boolean} namesModel several models may have written the replies
 * @property {boolean} userMarkdown
 * @property {number} [limit] tokens that the context holds
 */

/** The view of a message. */
export function viewOf(message, actions) {
  if (message.role === "assistant") return new ReplyView(actions);
  return message.role === "user" ? new UserView(actions) : new ResultView();
}

/** ‹ 2/3 ›: the other messages at the same place. */
class Branches {
  element = h("span", { class: "branches", role: "group", "aria-label": "Versions" });
  #label = h("span", { class: "place" });
  #before;
  #after;
  #ids = [];
  #at = 0;

  constructor(choose) {
    const step = (by) => () => choose(this.#ids[this.#at + by]);
    this.#before = iconButton("before", "Previous version", step(-1));
    this.#after = iconButton("after", "Next version", step(1));
    this.element.append(this.#before, this.#label, this.#after);
  }

  show(ids, id, busy) {
    this.#ids = ids;
    this.#at = ids.indexOf(id);
    this.element.hidden = ids.length < 2;
    say(this.#label, `${this.#at + 1}/${ids.length}`);
    this.#before.disabled = busy || this.#at === 0;
    this.#after.disabled = busy || this.#at === ids.length - 1;
  }
}

class UserView {
  #actions;
  #text = h("div", { class: "text" });
  #files = h("ul", { class: "files", "aria-label": "Attached files" });
  #media = h("ul", { class: "media", "aria-label": "Pictures and sounds" });
  #panel = h("div", { class: "panel" }, this.#files, this.#text);
  #branches;
  #edit;
  #shown = "";
  #message;

  constructor(actions) {
    this.#actions = actions;
    this.#branches = new Branches(actions.choose);
    this.#edit = iconButton("edit", "Edit", () => this.edit());
    const more = iconButton("more", "More", () => this.#menu(more), { "aria-haspopup": "menu", "aria-expanded": "false" });
    const copy = iconButton("copy", "Copy", () => copyText(this.#message.content));
    this.element = h(
      "article",
      { class: "message user" },
      h("h2", { class: "unseen" }, "You"),
      this.#media,
      this.#panel,
      h("footer", {}, this.#branches.element, h("span", { class: "actions" }, copy, this.#edit, more)),
    );
  }

  show(message, { siblings, busy, unseen, userMarkdown }) {
    this.#message = message;
    this.element.classList.toggle("left-out", unseen);
    this.#branches.show(siblings, message.id, busy);
    this.#edit.disabled = busy;
    const key = `${userMarkdown}${message.content}`;
    if (key === this.#shown) return;
    this.#shown = key;
    this.#text.className = userMarkdown ? "text prose" : "text plain";
    this.#text.replaceChildren();
    if (userMarkdown) new Markdown(this.#text).show(message.content);
    else this.#text.textContent = message.content;
    const { content, files = [], media = [] } = message;
    fill(this.#files, files.map(attachment));
    this.#files.hidden = !files.length;
    fill(this.#media, mediaList(media, this.#actions.library));
    this.#media.hidden = !media.length;
    this.#panel.hidden = !content && !files.length;
  }

  /** Lets the text be changed in place. */
  edit() {
    if (this.#edit.disabled || this.element.querySelector(".editor")) return;
    const send = (text) => this.#actions.editUser(this.#message.id, text);
    const parts = { text: this.#message.content, label: "Edit the message", buttons: { Send: send } };
    editInPlace(this.#panel, parts);
  }

  #menu(button) {
    const { id } = this.#message;
    openMenu(button, [
      { label: "Delete from here", icon: "remove", danger: true, run: () => this.#actions.remove(id) },
    ]);
  }
}

/** A file that was attached; its text is shown on demand. */
function attachment({ name, text }) {
  const size = text.length < 1000 ? `${text.length} characters` : `${count(text.length / 1000)} k characters`;
  const summary = h("summary", {}, icon("file"), h("span", {}, name), h("span", { class: "size" }, size));
  const body = h("pre", { tabIndex: 0, role: "region", "aria-label": name });
  const details = h("details", {}, summary, body);
  details.addEventListener("toggle", () => say(body, text), { once: true });
  return h("li", {}, details);
}

class ResultView {
  element = h("article", { class: "message tool" });

  show(message, { unseen }) {
    this.element.classList.toggle("left-out", unseen);
    if (this.element.firstChild) return;
    this.element.append(h("h2", { class: "unseen" }, "Result of a tool"), toolResult(message));
  }
}

class ReplyView {
  #actions;
  #message;
  #place;
  #body = h("div", { class: "prose" });
  #markdown = new Markdown(this.#body);
  #thoughts = new Thoughts(() => this.#actions.answerNow(this.#message.id));
  #calls = null;
  #progress = null;
  #certain = false;
  #json = null;
  #notice = h("div", { class: "notice-place" });
  #noticeKey = "";
  #branches;
  #bar = h("footer", {});
  #meta = h("span", { class: "meta" });
  #metaKey = "";
  #buttons;

  constructor(actions) {
    this.#actions = actions;
    this.#branches = new Branches(actions.choose);
    this.#buttons = this.#makeButtons();
    const { copy, again, certainty, more } = this.#buttons;
    this.#bar.append(
      this.#branches.element,
      this.#meta,
      h("span", { class: "actions" }, copy, again, certainty, more),
    );
    this.#heading = h("h2", { class: "unseen" }, "Reply");
    this.element = h("article", { class: "message reply" }, this.#heading);
  }

  #heading;

  #makeButtons() {
    const own = (run) => () => run(this.#message.id);
    const more = iconButton("more", "More", () => this.#menu(more), { "aria-haspopup": "menu", "aria-expanded": "false" });
    return {
      copy: iconButton("copy", "Copy the reply", () => this.#copy()),
      again: iconButton("again", "Answer again", own(this.#actions.again)),
      certainty: iconButton("certainty", "Colour by certainty", () => this.#toggleCertainty(), { "aria-pressed": "false" }),
      more,
    };
  }

  show(message, place) {
    this.#message = message;
    this.#place = place;
    const empty = !message.content && !message.calls?.length && !message.reasoning;
    const waiting = place.reply && !["thinking", "writing", "ended"].includes(place.reply.phase);
    this.element.classList.toggle("left-out", place.unseen);
    this.element.classList.toggle("writing", place.reply?.phase === "writing");
    this.element.setAttribute("aria-busy", String(Boolean(place.reply)));
    this.#thoughts.show(message, place.reply);
    this.#showBody();
    this.#showCalls();
    this.#showNotice();
    this.#showBar();
    fill(
      this.element,
      this.#heading,
      waiting && this.#progressOf(place.reply),
      message.reasoning && this.#thoughts.element,
      (message.content || this.#certain) && this.#bodyElement(),
      message.calls?.length && this.#calls.element,
      this.#noticeKey && this.#notice,
      !place.reply && !(empty && this.#noticeKey && place.siblings.length < 2) && this.#bar,
    );
  }

  // -- parts --------------------------------------------------------------------------------------

  #progressOf(reply) {
    this.#progress ??= new Progress(() => this.#place.reply?.tryNow());
    this.#progress.show(reply, this.#place.loads);
    return this.#progress.box;
  }

  #bodyElement() {
    if (this.#certain) return (this.#certainElement ??= certaintyView(this.#message.logprobs));
    return this.#json ?? this.#body;
  }

  #certainElement = null;
  #jsonKey = "";

  #showBody() {
    const { content } = this.#message;
    const done = !this.#place.reply;
    // A reply that is one JSON value is not prose: line breaks and stars in it mean themselves.
    if (done ? isJson(content) : beginsAsJson(content)) this.#showJson(content, done);
    else {
      this.#json = null;
      this.#jsonKey = "";
      this.#markdown.show(content);
    }
  }

  #showJson(content, done) {
    const key = `${done}${content}`;
    const old = this.#jsonKey;
    if (key === old) return;
    this.#jsonKey = key;
    if (this.#json && !done && key.startsWith(old)) {
      growJson(this.#json, key, old);
      return;
    }
    const text = jsonBlock(content, "Reply in JSON", done);
    const head = h("figcaption", {}, h("span", {}, "JSON"), copyButton(() => this.#message.content));
    this.#json = h("figure", { class: "code" }, head, text);
  }

  #showCalls() {
    const { calls, status } = this.#message;
    if (!calls?.length) return;
    this.#calls ??= new ToolCalls();
    this.#calls.show(calls, !this.#place.reply);
    const asks = this.#place.isLast && !this.#place.reply && status === "done";
    const give = (results) => this.#actions.giveResults(this.#message.id, results);
    this.#calls.ask(calls, asks ? give : null);
  }

  #showNotice() {
    const { status, error, finish, usage, content, reasoning, calls, id } = this.#message;
    const { reply, isLast, limit } = this.#place;
    const state = `${status} ${error?.kind} ${error?.alone} ${finish} ${isLast} ${limit}`;
    const key = !reply && (status === "failed" || finish === "length" || status === "running") ? state : "";
    if (key === this.#noticeKey) return;
    this.#noticeKey = key;
    if (!key) return;
    const kept = Boolean(content || reasoning || calls?.length);
    const about = { id, error, kept, usage, isLast, limit, content };
    const failed = status === "failed" || status === "running";
    fill(this.#notice, failed ? failureNotice(about, this.#actions) : limitNotice(about, this.#actions));
  }

  #showBar() {
    const { siblings, busy } = this.#place;
    const { copy, again, certainty } = this.#buttons;
    this.#branches.show(siblings, this.#message.id, busy);
    again.disabled = busy;
    copy.hidden = !this.#message.content && !this.#message.calls?.length;
    certainty.hidden = !this.#message.logprobs?.length;
    const { usage, speed, status, edited } = this.#message;
    const model = this.#place.namesModel ? this.#message.model : undefined;
    const key = JSON.stringify([usage, speed, status, edited, model]);
    if (key === this.#metaKey) return;
    this.#metaKey = key;
    fill(this.#meta, metaParts({ ...this.#message, model }));
  }

  // -- what can be done ---------------------------------------------------------------------------

  async #copy() {
    await copyText(this.#message.content || JSON.stringify(this.#message.calls ?? [], null, 2));
    this.#actions.say("Copied");
  }

  #toggleCertainty() {
    this.#certain = !this.#certain;
    if (!this.#certain) this.#certainElement = null;
    this.#buttons.certainty.setAttribute("aria-pressed", String(this.#certain));
    this.show(this.#message, this.#place);
  }

  #menu(button) {
    const { id, calls, status, logprobs } = this.#message;
    const { busy, isLast } = this.#place;
    const free = !busy;
    openMenu(button, [
      free && isLast && !calls?.length && { label: "Continue", icon: "onward", run: () => this.#actions.continue(id) },
      free && !calls?.length && { label: "Edit", icon: "edit", run: () => this.#edit() },
      free && !logprobs && status === "done" && {
        label: "Answer again with certainty",
        icon: "certainty",
        run: () => this.#actions.againWithCertainty(id),
      },
      free && { label: "Delete from here", icon: "remove", danger: true, run: () => this.#actions.remove(id) },
      { label: "Copy", icon: "copy", run: () => this.#copy() },
    ]);
  }

  #edit() {
    if (this.element.querySelector(".editor")) return;
    const shown = this.#bodyElement();
    if (!shown.isConnected) this.#heading.after(shown);
    const save = (goOn) => (text) => this.#actions.editReply(this.#message.id, text, goOn);
    const buttons = { "Save and continue": save(true), Save: save(false) };
    editInPlace(shown, { text: this.#message.content, label: "Edit the reply", buttons });
  }
}

/** What the reply cost: the reuse first, because it is what makes the next one quick. */
function metaParts({ model, usage, speed, status, edited, finish }) {
  const parts = [];
  if (model) parts.push(h("span", { class: "author", title: "The model that wrote it" }, model));
  if (usage?.prompt) parts.push(reuseNote(usage));
  if (speed?.first) parts.push(h("span", { title: "Time to the first token" }, `first token ${duration(speed.first)}`));
  if (speed?.rate && usage?.reply > 1) {
    parts.push(h("span", { title: `${tokens(usage.reply)} in the reply` }, rate(speed.rate)));
  }
  if (status === "stopped") parts.push(h("span", {}, "stopped"));
  if (edited) parts.push(h("span", {}, "edited"));
  if (finish === "error") parts.length = 0;
  return parts;
}

/** Reasoning, folded. */
class Thoughts {
  #summary = h("span", {});
  #text = h("div", { class: "prose" });
  #markdown = new Markdown(this.#text);
  #skip;
  #details;

  constructor(answerNow) {
    this.#skip = h("button", { type: "button", class: "button small", onclick: answerNow }, "Answer now");
    this.#details = h("details", { class: "thoughts" }, h("summary", {}, this.#summary), this.#text);
    // What nobody looks at is not laid out while it grows.
    this.#details.addEventListener("toggle", () => this.#render());
    this.element = h("div", { class: "thinking" }, this.#details, this.#skip);
  }

  #latest = "";

  show({ reasoning = "", speed }, reply) {
    if (!reasoning) return;
    const thinking = reply?.phase === "thinking";
    this.#latest = reasoning;
    this.#skip.hidden = !thinking;
    this.element.classList.toggle("now", thinking);
    const took = speed?.thought ? `Thought for ${duration(speed.thought)}` : "Thoughts";
    say(this.#summary, thinking ? "Thinking" : took);
    this.#render();
  }

  #render() {
    if (this.#details.open) this.#markdown.show(this.#latest);
  }
}

// What can be done with a conversation: send, answer again, edit, continue, make room. Owns the
// replies that are running; a conversation goes on while another one is shown.

import { Conversation } from "./conversation.js";
import { countMedia, mediaFields } from "./media/library.js";
import { chooseFirst, counter, summaryBody } from "./overflow.js";
import { Reply } from "./reply.js";
import { chatBody } from "./request.js";
import { titleFrom } from "./words.js";

/** Milliseconds between two times that a growing reply is written to the database. */
const SAVE_EVERY = 1000;
/** Milliseconds in which a tab that is gone has let go of its reply, or another one has answered. */
const OTHER_TABS = 400;

export class Chat {
  #api;
  #store;
  #library;
  #choice;
  #events;
  #tabs;
  #leaving = false;
  #running = new Map();
  /** Ids of conversations that another tab has deleted. */
  #removed = new Set();

  /**
   * @param {object} parts
   * @param {import("./api.js").Api} parts.api
   * @param {object} parts.store
   * @param {import("./media/library.js").Library} parts.library
   * @param {() => {model?: string, limit?: number}} parts.choice the model, and how many tokens its
   *   context holds
   * @param {string} parts.name of the page, the same in all its tabs
   * @param {{changed: Function, grew: Function, ended: Function, elsewhere: Function}} parts.events
   *   called with the conversation: it changed, its running reply grew, a reply ended; with its id:
   *   another tab has changed or deleted it
   */
  constructor({ api, store, library, name, choice, events }) {
    this.#api = api;
    this.#store = store;
    this.#library = library;
    this.#choice = choice;
    this.#events = events;
    const isOurs = (id) => [...this.#running.values()].some((each) => each.message.id === id);
    this.#tabs = new Tabs(name, isOurs, {
      changed: (id) => this.#changedElsewhere(id),
      removed: (id) => this.#removedElsewhere(id),
    });
    // What breaks because the page is left goes on when it is there again.
    addEventListener("pagehide", () => (this.#leaving = true));
    addEventListener("pageshow", () => (this.#leaving = false));
  }

  /** The running reply of a conversation, if there is one. */
  replyOf(id) {
    return this.#running.get(id);
  }

  get runningIds() {
    return new Set(this.#running.keys());
  }

  /** A conversation with its messages; the same object while a reply of it is running. */
  async load(record) {
    const running = this.#running.get(record.id);
    if (running) return running.conversation;
    return new Conversation(record, await this.#store.messages(record.id));
  }

  // -- sending ------------------------------------------------------------------------------------

  /**
   * Adds a message of the user and has it answered.
   *
   * @param {Conversation} conversation
   * @param {{text: string, files?: object[], media?: object[], begin?: string}} message `begin`:
   *   what the reply begins with
   */
  send(conversation, { text, files = [], media = [], begin = "" }) {
    const attached = { ...(files.length ? { files } : {}), ...mediaFields(media) };
    const message = conversation.add({ role: "user", content: text, ...attached });
    const { record } = conversation;
    if (!record.title) record.title = titleFrom(text || (files[0] ?? media[0])?.name || "");
    record.draft = "";
    return this.answer(conversation, message, begin);
  }

  /** Has the last message answered, as a new branch if it was answered before. */
  answer(conversation, message, begin = "", fields = {}) {
    const reply = conversation.add({ role: "assistant", content: begin, ...fields }, message.id);
    if (begin) reply.begun = begin.length;
    return this.#run(conversation, reply, begin ? reply : message);
  }

  /** Another reply in place of this one, perhaps `certain`; the old one stays as a branch. */
  again(conversation, id, fields = {}) {
    return this.answer(conversation, conversation.get(conversation.get(id).parent), "", fields);
  }

  /** Lets a reply go on from where it ended, be it in its reasoning. */
  continue(conversation, id) {
    const reply = conversation.get(id);
    return this.#run(conversation, reply, hasBegun(reply) ? reply : conversation.get(reply.parent));
  }

  /** Lets a reply that is still reasoning go on with its answer. */
  async answerNow(conversation, id) {
    await this.end(conversation.id);
    const reply = conversation.get(id);
    return this.#run(conversation, reply, reply, "content");
  }

  /** A reply that failed before anything came is asked for once more, in its place. */
  retry(conversation, id) {
    const reply = conversation.get(id);
    const parts = reply.content.length > (reply.begun ?? 0) || reply.reasoning || reply.calls;
    if (parts) return this.again(conversation, id);
    return this.#run(conversation, reply, reply.content ? reply : conversation.get(reply.parent));
  }

  /** Says something else at the place of a message of the user, as a new branch. */
  editUser(conversation, id, text) {
    const { parent, files, media } = conversation.get(id);
    const attached = { ...(files ? { files } : {}), ...mediaFields(media) };
    const message = conversation.add({ role: "user", content: text, ...attached }, parent);
    const { record } = conversation;
    if (!parent && !record.renamed && text) record.title = titleFrom(text); // it was its words
    return this.answer(conversation, message);
  }

  /** Puts other words into the mouth of the model, as a new branch. */
  editReply(conversation, id, text) {
    const { parent, model, reasoning } = conversation.get(id);
    const fields = { role: "assistant", content: text, status: "done", model, edited: true };
    const message = conversation.add({ ...fields, ...(reasoning ? { reasoning } : {}) }, parent);
    return this.save(conversation, [message]);
  }

  /** Gives the results of a reply's calls of tools, and has them answered. */
  async giveResults(conversation, id, results) {
    const { calls } = conversation.get(id);
    conversation.choose(id);
    const added = calls.map((call, index) =>
      conversation.add({ role: "tool", call: call.id, name: call.name, content: results[index] }),
    );
    await this.save(conversation, added);
    return this.answer(conversation, added.at(-1));
  }

  /** Ends the running reply of a conversation; what has come is kept. */
  stop(conversation) {
    this.#running.get(conversation.id)?.stop();
  }

  /** Ends the running reply, and waits until nothing more is written. */
  async end(id) {
    const reply = this.#running.get(id);
    reply?.stop();
    await reply?.finished;
  }

  /** Resolves when the reply has ended, however it did. */
  #run(conversation, message, upTo, part) {
    if (this.#running.has(conversation.id)) return undefined;
    const path = conversation.pathTo(upTo.id);
    const seen = path.slice(conversation.firstSeenIn(path));
    const reply = new Reply({
      api: this.#api,
      body: async () => {
        const choice = await this.#choiceFor(seen);
        return chatBody(conversation, seen, { ...choice, part, certain: message.certain });
      },
      media: countMedia(seen),
      message,
      changed: () => this.#events.grew(conversation),
    });
    reply.conversation = conversation;
    this.#running.set(conversation.id, reply);
    reply.finished = this.#finish(conversation, reply, path);
    this.#tabs.hold(message.id, reply.finished);
    return reply.finished;
  }

  /** The model, its limit, and the pictures and sounds of a path. */
  async #choiceFor(path) {
    return { ...this.#choice(), urls: await this.#library.dataUrls(path) };
  }

  async #finish(conversation, reply, path) {
    const { message } = reply;
    const running = reply.run();
    await this.save(conversation, [...path.slice(-2), message]);
    const saving = setInterval(() => this.#keep(conversation, message), SAVE_EVERY);
    try {
      await running;
      // Nothing can be left out before the only message.
      if (message.error?.kind === "overflow" && usersIn(conversation, path) < 2) message.error.alone = true;
    } finally {
      clearInterval(saving);
      // It is shown as ended when it is written: whoever reloads the page then finds all of it.
      try {
        if (!this.#leaving) await this.save(conversation, [message], conversation.id);
      } finally {
        this.#running.delete(conversation.id);
      }
    }
    if (!this.#removed.has(conversation.id)) this.#tabs.tell({ changed: conversation.id });
    this.#events.ended(conversation, message);
    await this.#makeRoomIfAsked(conversation, message);
  }

  // Log-probabilities are many; they are written once, at the end.
  #keep(conversation, { logprobs, ...message }) {
    return this.#store.save({ messages: [message], of: conversation.id });
  }

  /** Deletes a conversation; a reply of it that is running ends. */
  async remove(id) {
    await this.end(id);
    await this.#store.removeConversation(id);
    this.#tabs.tell({ removed: id });
  }

  /** Writes the record of a conversation, and messages, that may have been deleted before. */
  async put(record, messages = []) {
    await this.#write({ records: [record], messages });
    this.#tabs.tell({ changed: record.id });
  }

  // The pictures and sounds of messages are written with them, if they are not there yet.
  async #write(what) {
    const media = this.#library.unsavedOf(what.messages);
    await this.#store.save({ ...what, media });
    this.#library.saved(media);
  }

  #changedElsewhere(id) {
    this.#removed.delete(id);
    if (!this.#running.has(id)) this.#events.elsewhere(id);
  }

  // What is running here must not be written any more: half of the conversation would come back.
  async #removedElsewhere(id) {
    this.#removed.add(id);
    await this.end(id);
    this.#events.elsewhere(id);
  }

  /** Writes a conversation and some of its messages; with `of`, only if that is still there. */
  async save(conversation, messages = [], of = undefined) {
    if (this.#removed.has(conversation.id)) return;
    conversation.record.updated = Date.now();
    this.#events.changed(conversation);
    await this.#write({ records: [conversation.record], messages, of });
    if (!this.#running.has(conversation.id)) this.#tabs.tell({ changed: conversation.id });
  }

  // -- when the context is full -------------------------------------------------------------------

  #makeRoomIfAsked(conversation, message) {
    const full = message.error?.kind === "overflow" && conversation.record.options.leaveOut;
    return full && !message.madeRoom ? this.leaveOut(conversation, message.id) : undefined;
  }

  /**
   * Lets the model no longer see the oldest turns, and asks again.
   *
   * @returns {Promise<boolean>} false if even the last turn alone does not fit
   */
  async leaveOut(conversation, id) {
    const reply = conversation.get(id);
    const begun = reply.finish === "length";
    const path = conversation.pathTo(begun ? id : reply.parent);
    const first = await this.#firstThatFits(conversation, path, reply.error, true);
    if (!first) {
      reply.error = { ...reply.error, alone: true };
      await this.save(conversation, [reply]);
      return false;
    }
    reply.madeRoom = true;
    conversation.record.firstSeen = first;
    await (begun ? this.continue(conversation, id) : this.retry(conversation, id));
    return true;
  }

  async #firstThatFits(conversation, path, { tokens, limit, isBound } = {}, less) {
    const holds = limit ?? this.#choice().limit ?? 2048;
    const seen = path.slice(conversation.firstSeenIn(path));
    const known = { path: seen, tokens: tokens ?? holds, isBound };
    const count = counter(this.#api, conversation, known, await this.#choiceFor(path));
    return chooseFirst(conversation, path, holds, count, less);
  }

  /**
   * Has the conversation up to a message summarised.
   *
   * @param {(text: string) => void} grew called with the summary as it comes
   * @param {AbortSignal} signal ends it
   */
  async summarise(conversation, id, grew, signal) {
    const reply = conversation.get(id);
    const path = conversation.pathTo(reply.parent).slice(0, -1);
    const first = await this.#firstThatFits(conversation, path, reply.error, false);
    if (!first) throw new Error("What is to be summarised does not fit into the context.");
    const from = path.findIndex((message) => message.id === first);
    const seen = path.slice(from);
    const body = summaryBody(conversation, seen, await this.#choiceFor(seen));
    let summary = "";
    for await (const chunk of this.#api.chat(body, signal)) {
      summary += chunk.choices?.[0]?.delta?.content ?? "";
      grew(summary);
    }
    return summary;
  }

  // -- after a reload -----------------------------------------------------------------------------

  /**
   * Goes on with a reply that was running when the page was left, if no other tab has it. The
   * server still has its tokens in memory, so that costs next to nothing.
   */
  async resume(conversation) {
    const { last } = conversation;
    if (last?.status !== "running" || this.#running.has(conversation.id)) return;
    if (await this.#tabs.anyHas(last.id)) return;
    if (last.calls?.length) {
      Object.assign(last, { status: "failed", error: { kind: "broken", message: "" } });
      await this.save(conversation, [last]);
    } else {
      await this.continue(conversation, last.id);
    }
  }
}

/** Whether there is something of a reply that it can go on from. */
function hasBegun({ content, reasoning }) {
  return Boolean(content || reasoning);
}

/**
 * The other tabs of this page. The one that writes a reply holds its lock. Pages that did not come
 * over https or from this machine have no locks, and ask each other.
 */
class Tabs {
  #name;
  #channel;

  constructor(name, isOurs, { changed, removed }) {
    this.#name = name;
    this.#channel = new BroadcastChannel(name);
    this.#channel.addEventListener("message", ({ data }) => {
      if (data.ask && isOurs(data.ask)) this.#channel.postMessage({ has: data.ask });
      if (data.changed) changed(data.changed);
      if (data.removed) removed(data.removed);
    });
  }

  /** Says that the conversation with an id was changed and written, or removed. */
  tell(what) {
    this.#channel.postMessage(what);
  }

  /** Says that a reply is written here, until that has ended. */
  hold(id, ended) {
    navigator.locks?.request(`${this.#name} ${id}`, () => ended).catch(() => {});
  }

  /** Whether another tab writes this reply. */
  async anyHas(id) {
    if (!navigator.locks) return this.#ask(id);
    const options = { signal: AbortSignal.timeout(OTHER_TABS) };
    const free = navigator.locks.request(`${this.#name} ${id}`, options, () => false);
    return free.catch(() => true);
  }

  #ask(id) {
    return new Promise((resolve) => {
      const listen = ({ data }) => data.has === id && answer(true);
      const timer = setTimeout(() => answer(false), OTHER_TABS);
      const answer = (has) => {
        clearTimeout(timer);
        this.#channel.removeEventListener("message", listen);
        resolve(has);
      };
      this.#channel.addEventListener("message", listen);
      this.#channel.postMessage({ ask: id });
    });
  }
}

/** How many messages of the user of a path the model sees. */
function usersIn(conversation, path) {
  return path.slice(conversation.firstSeenIn(path)).filter(({ role }) => role === "user").length;
}

// A conversation: messages in a tree, and the branch of it that is shown. Answering again or editing
// adds a sibling; nothing is overwritten.

/**
 * @typedef {object} Message
 * @property {string} id
 * @property {string} conversation
 * @property {string|null} parent
 * @property {"user"|"assistant"|"tool"} role
 * @property {string} content
 * @property {string} [reasoning]
 * @property {{id: string, name: string, arguments: string}[]} [calls] of tools
 * @property {string} [call] of a tool's result: id of the call
 * @property {{name: string, text: string}[]} [files]
 * @property {import("./media/library.js").Media[]} [media] pictures and sounds
 * @property {string[]} [digests] of them, each once
 * @property {number} created in milliseconds
 * @property {"running"|"done"|"stopped"|"failed"} [status] of replies
 * @property {object} [error] of a reply that failed: `kind`, `message` and details of `ApiError`
 * @property {string} [finish] why the reply ended: "stop", "length", "tool_calls"
 * @property {object} [usage] `prompt`, `reused`, `reply`: tokens; `pictures`, `sounds` of the prompt
 * @property {object} [speed] `first`: milliseconds to the first token; `rate`: tokens a second;
 *   `thought`: milliseconds of reasoning
 * @property {object[]} [logprobs] of every token of the reply
 * @property {string} [model]
 */

/** An id that is hard to guess. `crypto.randomUUID` does not exist on plain http. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The record of a new conversation. */
export function newRecord(fields = {}) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    renamed: false,
    created: now,
    updated: now,
    leaf: null,
    firstSeen: null,
    system: "",
    options: {},
    draft: "",
    ...fields,
  };
}

export class Conversation {
  #messages = new Map();
  #children = new Map();

  /**
   * @param {object} record what is kept beside the messages: see `newRecord`
   * @param {Message[]} [messages]
   */
  constructor(record, messages = []) {
    this.record = record;
    const inOrder = [...messages].sort((one, other) => one.created - other.created);
    for (const message of inOrder) this.#messages.set(message.id, message);
    for (const message of inOrder) this.#childrenOf(message.parent).push(message.id);
    if (!this.#messages.has(record.leaf)) record.leaf = this.#newestLeaf(null);
  }

  get id() {
    return this.record.id;
  }

  get messages() {
    return [...this.#messages.values()];
  }

  get(id) {
    return this.#messages.get(id);
  }

  /** The messages of the branch that is shown, oldest first. */
  get path() {
    return this.pathTo(this.record.leaf);
  }

  /** The messages from the first one to the given one. */
  pathTo(id) {
    const path = [];
    for (let at = this.get(id); at; at = this.get(at.parent)) path.push(at);
    return path.reverse();
  }

  get last() {
    return this.get(this.record.leaf);
  }

  /** Adds a message below another one (the last that is shown), and shows it. */
  add(fields, parent = this.record.leaf) {
    const last = this.get(this.#childrenOf(parent).at(-1));
    // Siblings are sorted by time, also when two are made within a millisecond.
    const created = Math.max(Date.now(), (last?.created ?? 0) + 1);
    const message = { id: newId(), conversation: this.id, parent, content: "", created, ...fields };
    this.#messages.set(message.id, message);
    this.#childrenOf(parent).push(message.id);
    this.record.leaf = message.id;
    return message;
  }

  /** Ids of the messages at the same place in other branches, and the given one's. */
  siblings(id) {
    return this.#childrenOf(this.get(id).parent);
  }

  /** Shows the branch that a message is in: the newest one, if there are several. */
  choose(id) {
    this.record.leaf = this.#newestLeaf(id);
  }

  /** Removes a message and all that follows it; returns what was removed. */
  remove(id) {
    const removed = this.#below(id);
    const { parent } = this.get(id);
    const siblings = this.#childrenOf(parent);
    siblings.splice(siblings.indexOf(id), 1);
    for (const message of removed) {
      this.#messages.delete(message.id);
      this.#children.delete(message.id);
    }
    if (!this.get(this.record.leaf)) this.record.leaf = this.#newestLeaf(parent);
    return removed;
  }

  /** Puts back what `remove` returned. */
  restore(messages) {
    for (const message of messages) this.#messages.set(message.id, message);
    for (const message of messages) {
      const siblings = this.#childrenOf(message.parent);
      if (!siblings.includes(message.id)) siblings.push(message.id);
      siblings.sort((one, other) => this.get(one).created - this.get(other).created);
    }
    if (messages.length) this.choose(messages[0].id);
  }

  /** Index in the path of the first message that the model sees; those before it are left out. */
  firstSeenIn(path) {
    return Math.max(0, path.findIndex((message) => message.id === this.record.firstSeen));
  }

  #childrenOf(id) {
    if (!this.#children.has(id)) this.#children.set(id, []);
    return this.#children.get(id);
  }

  #newestLeaf(id) {
    let at = id;
    for (let next = this.#childrenOf(at).at(-1); next; next = this.#childrenOf(at).at(-1)) at = next;
    return at;
  }

  #below(id) {
    const found = [this.get(id)];
    for (const message of found) {
      found.push(...this.#childrenOf(message.id).map((child) => this.get(child)));
    }
    return found;
  }
}

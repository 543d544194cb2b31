// Conversations in the browser's database (IndexedDB). They never leave the browser by themselves.

const VERSION = 1;

/** The browser's database, or one in memory where it has none (some private windows). */
export async function openStore(name) {
  try {
    return new Store(await openDatabase(name));
  } catch {
    return new MemoryStore();
  }
}

function openDatabase(name) {
  const opening = indexedDB.open(name, VERSION);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore("conversations", { keyPath: "id" });
    const messages = opening.result.createObjectStore("messages", { keyPath: "id" });
    messages.createIndex("conversation", "conversation");
  };
  return result(opening);
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("the database is in use by an older page"));
  });
}

function finished(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });
}

class Store {
  #database;
  lasting = true;

  constructor(database) {
    this.#database = database;
    // A newer page in another tab may change the database.
    database.onversionchange = () => database.close();
  }

  #read(name) {
    return this.#database.transaction(name, "readonly").objectStore(name);
  }

  async #write(change) {
    const transaction = this.#database.transaction(["conversations", "messages"], "readwrite");
    change(transaction.objectStore("conversations"), transaction.objectStore("messages"));
    await finished(transaction);
  }

  /** Records of all conversations, newest first. */
  async conversations() {
    const records = await result(this.#read("conversations").getAll());
    return records.sort((one, other) => other.updated - one.updated);
  }

  /** Messages of a conversation, in no order. */
  messages(conversation) {
    return result(this.#read("messages").index("conversation").getAll(conversation));
  }

  /**
   * Writes records and messages, all or nothing; with `of`, the id of a conversation, nothing if that
   * is not there any more.
   */
  save({ records = [], messages = [], of }) {
    return this.#write((conversations, stored) => {
      const put = () => {
        for (const record of records) conversations.put(record);
        for (const message of messages) stored.put(message);
      };
      if (!of) return put();
      const key = conversations.getKey(of);
      key.onsuccess = () => key.result && put();
      return undefined;
    });
  }

  removeMessages(messages) {
    return this.#write((_, stored) => {
      for (const message of messages) stored.delete(message.id);
    });
  }

  removeConversation(id) {
    return this.#write((conversations, stored) => {
      conversations.delete(id);
      const keys = stored.index("conversation").getAllKeys(id);
      keys.onsuccess = () => keys.result.forEach((key) => stored.delete(key));
    });
  }

  /** Calls a function with each message until it returns false. */
  each(visit) {
    const request = this.#read("messages").openCursor();
    return new Promise((resolve, reject) => {
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor || visit(cursor.value) === false) resolve();
        else cursor.continue();
      };
    });
  }
}

/** The same, until the page is closed. */
class MemoryStore {
  #records = new Map();
  #messages = new Map();
  lasting = false;

  async conversations() {
    return [...this.#records.values()].sort((one, other) => other.updated - one.updated);
  }

  async messages(conversation) {
    return [...this.#messages.values()].filter((each) => each.conversation === conversation);
  }

  async save({ records = [], messages = [], of }) {
    if (of && !this.#records.has(of)) return;
    for (const record of records) this.#records.set(record.id, structuredClone(record));
    for (const message of messages) this.#messages.set(message.id, structuredClone(message));
  }

  async removeMessages(messages) {
    for (const message of messages) this.#messages.delete(message.id);
  }

  async removeConversation(id) {
    this.#records.delete(id);
    await this.removeMessages(await this.messages(id));
  }

  async each(visit) {
    for (const message of this.#messages.values()) if (visit(message) === false) return;
  }
}

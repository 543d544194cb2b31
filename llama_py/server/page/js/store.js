// Conversations in the browser's database (IndexedDB). They never leave the browser by themselves.

const VERSION = 2;

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
  opening.onupgradeneeded = ({ oldVersion }) => upgrade(opening, oldVersion);
  return result(opening);
}

function upgrade({ result: database, transaction }, from) {
  if (from < 1) {
    database.createObjectStore("conversations", { keyPath: "id" });
    const messages = database.createObjectStore("messages", { keyPath: "id" });
    messages.createIndex("conversation", "conversation");
  }
  if (from < 2) {
    database.createObjectStore("media", { keyPath: "digest" });
    transaction.objectStore("messages").createIndex("digests", "digests", { multiEntry: true });
  }
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
    const names = ["conversations", "messages", "media"];
    const transaction = this.#database.transaction(names, "readwrite");
    change(...names.map((name) => transaction.objectStore(name)));
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

  /** The bytes of a picture or a sound, as a blob; undefined if they are not there. */
  async media(digest) {
    return (await result(this.#read("media").get(digest)))?.blob;
  }

  /**
   * Writes records, messages, and the pictures and sounds of these, all or nothing; with `of`, the id
   * of a conversation, nothing if that is not there any more.
   */
  save({ records = [], messages = [], media = [], of }) {
    return this.#write((conversations, stored, kept) => {
      const put = () => {
        for (const each of media) kept.put(each);
        for (const record of records) conversations.put(record);
        for (const message of messages) stored.put(message);
      };
      if (!of) return put();
      const key = conversations.getKey(of);
      key.onsuccess = () => key.result && put();
      return undefined;
    });
  }

  /** Removes messages, and the pictures and sounds that no other message has. */
  removeMessages(messages) {
    return this.#write((_, stored, media) => removeAll(messages, stored, media));
  }

  removeConversation(id) {
    return this.#write((conversations, stored, media) => {
      conversations.delete(id);
      const own = stored.index("conversation").getAll(id);
      own.onsuccess = () => removeAll(own.result, stored, media);
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

function removeAll(messages, stored, media) {
  for (const message of messages) stored.delete(message.id);
  for (const digest of new Set(messages.flatMap(({ digests = [] }) => digests))) {
    const users = stored.index("digests").count(digest);
    users.onsuccess = () => users.result || media.delete(digest);
  }
}

/** The same, until the page is closed. */
class MemoryStore {
  #records = new Map();
  #messages = new Map();
  #media = new Map();
  lasting = false;

  async conversations() {
    return [...this.#records.values()].sort((one, other) => other.updated - one.updated);
  }

  async messages(conversation) {
    return [...this.#messages.values()].filter((each) => each.conversation === conversation);
  }

  async media(digest) {
    return this.#media.get(digest);
  }

  async save({ records = [], messages = [], media = [], of }) {
    if (of && !this.#records.has(of)) return;
    for (const { digest, blob } of media) this.#media.set(digest, blob);
    for (const record of records) this.#records.set(record.id, structuredClone(record));
    for (const message of messages) this.#messages.set(message.id, structuredClone(message));
  }

  async removeMessages(messages) {
    for (const message of messages) this.#messages.delete(message.id);
    const used = new Set([...this.#messages.values()].flatMap(({ digests = [] }) => digests));
    for (const digest of this.#media.keys()) if (!used.has(digest)) this.#media.delete(digest);
  }

  async removeConversation(id) {
    this.#records.delete(id);
    await this.removeMessages(await this.messages(id));
  }

  async each(visit) {
    for (const message of this.#messages.values()) if (visit(message) === false) return;
  }
}

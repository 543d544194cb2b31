// What a person chose for the whole page, kept by the browser.

const PREFIX = "llama-py:";

export const DEFAULTS = {
  theme: "auto", // or "light", "dark"
  model: "",
  userMarkdown: false,
  sidebar: true,
  draft: "", // of a conversation that has not begun
  defaults: {}, // of new conversations: `system`, `options`
};

/** Reads and writes choices; where nothing can be kept, they last as long as the page. */
export class Prefs {
  #values = {};
  #key = null;

  get(name) {
    if (name in this.#values) return this.#values[name];
    const kept = read("localStorage", name);
    return kept === null ? DEFAULTS[name] : parsed(kept, DEFAULTS[name]);
  }

  set(name, value) {
    this.#values[name] = value;
    write("localStorage", name, JSON.stringify(value));
  }

  /** The API key: for this tab, or also after the browser was closed. */
  get key() {
    return this.#key ?? read("sessionStorage", "key") ?? read("localStorage", "key") ?? "";
  }

  setKey(key, remember) {
    this.#key = key;
    write("sessionStorage", "key", key);
    write("localStorage", "key", remember ? key : "");
  }
}

function parsed(text, otherwise) {
  try {
    return JSON.parse(text);
  } catch {
    return otherwise;
  }
}

// Where a browser forbids storage, even naming it is an error.
function read(storage, name) {
  try {
    return window[storage].getItem(PREFIX + name);
  } catch {
    return null;
  }
}

function write(storage, name, text) {
  try {
    if (text) window[storage].setItem(PREFIX + name, text);
    else window[storage].removeItem(PREFIX + name);
  } catch {
    // Full or forbidden: what was chosen holds until the page is closed.
  }
}

// Small windows in front of the page: the key, a summary, the keyboard, and short notes that go away.

import { h, iconButton } from "./dom.js";

/**
 * Opens a dialog and removes it when it is closed.
 *
 * @param {string} title
 * @param {object} props of the dialog
 * @param {...(Node|string)} children
 */
export function openDialog(title, props, ...children) {
  const heading = h("h2", { id: "dialog-title" }, title);
  const close = iconButton("close", "Close", () => dialog.close());
  const dialog = h(
    "dialog",
    { "aria-labelledby": "dialog-title", ...props },
    h("header", {}, heading, close),
    ...children,
  );
  dialog.addEventListener("close", () => dialog.remove());
  // A click beside it closes it, as long as it began there: a selection may end outside.
  let outside = false;
  dialog.addEventListener("pointerdown", (event) => (outside = event.target === dialog));
  dialog.addEventListener("click", (event) => outside && event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Titles and texts of the window for the key, by why it is open. */
const WHY_KEY = {
  asked: [
    "The server asks for a key",
    "This server wants a key with every request: one of those that it was started with.",
  ],
  refused: [
    "The server does not know this key",
    "It may be mistyped, or the server was started with other keys since.",
  ],
  wished: ["API key", "It is sent to this server with every request. Leave it empty to send none."],
};

/**
 * Asks for the API key. Resolves to whether one was given.
 *
 * @param {object} prefs
 * @param {boolean} asked the server wants one; otherwise the user does
 */
export function askForKey(prefs, asked) {
  const [title, why] = WHY_KEY[asked ? (prefs.key ? "refused" : "asked") : "wished"];
  return new Promise((resolve) => {
    const field = h("input", { id: "key", type: "password", value: prefs.key, autocomplete: "off", spellcheck: false });
    const remember = h("input", { id: "remember", type: "checkbox" });
    const form = h(
      "form",
      { class: "form" },
      h("p", {}, why),
      h("label", { for: "key" }, "API key"),
      field,
      h("label", { class: "check" }, remember, "Remember it in this browser"),
      h("div", { class: "buttons" }, h("button", { class: "button main" }, "Use this key")),
    );
    const dialog = openDialog(title, { class: "small" }, form);
    let given = false;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      given = true;
      prefs.setKey(field.value.trim(), remember.checked);
      dialog.close();
    });
    dialog.addEventListener("close", () => resolve(given));
    field.focus();
  });
}

/**
 * Shows a summary while it is written, lets it be changed, and resolves to it; to null if the dialog
 * was closed.
 *
 * @param {(grew: (text: string) => void, signal: AbortSignal) => Promise<string>} write
 */
export function askForSummary(write) {
  return new Promise((resolve) => {
    const stop = new AbortController();
    const field = h("textarea", { id: "summary", rows: 9, readOnly: true });
    const hint = h("p", { class: "hint", role: "status" }, "The model writes the summary.");
    const start = h("button", { class: "button main", disabled: true }, "Start the new conversation");
    const form = h(
      "form",
      { class: "form" },
      h("label", { for: "summary" }, "The new conversation begins with this. Change what is wrong or missing."),
      field,
      hint,
      h("div", { class: "buttons" }, start),
    );
    const dialog = openDialog("Go on with a summary", { class: "medium" }, form);
    const ready = (text) => {
      hint.textContent = text;
      field.readOnly = false;
      start.disabled = false;
    };
    write((text) => (field.value = text), stop.signal).then(
      () => ready("This conversation stays as it is."),
      (error) => ready(`The model could not write one (${error.message}). Write what matters yourself.`),
    );
    let result = null;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      result = field.value;
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      stop.abort();
      resolve(result);
    });
  });
}

const KEYS = [
  ["Enter", "Send"],
  ["Shift + Enter", "New line"],
  ["Esc", "Stop the reply"],
  ["↑ in the empty field", "Edit the last message"],
  ["Ctrl + K", "Search the conversations"],
  ["Ctrl + Shift + O", "New conversation"],
  ["Ctrl + ,", "Settings"],
  ["Tab, Shift + Tab", "From one control to the next"],
  ["↑ ↓ in the list", "From one conversation to the next"],
  ["?", "This list, when no field is active"],
];

export function showKeys() {
  const mac = /Mac|iPhone|iPad/.test(navigator.platform);
  const rows = KEYS.map(([keys, does]) =>
    h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, mac ? keys.replace("Ctrl", "⌘") : keys)), h("td", {}, does)),
  );
  openDialog("Keyboard", { class: "small" }, h("table", { class: "keys" }, h("tbody", {}, rows)));
}

/**
 * A note at the edge of the page, with a way back if there is one. It stays while it is pointed at
 * or has the focus.
 */
export function note(text, undo) {
  const close = () => toast.remove();
  const button = undo && h("button", { type: "button", class: "button small" }, "Undo");
  const toast = h("div", { class: "toast", role: "status" }, h("span", {}, text), button, iconButton("close", "Dismiss", close));
  button?.addEventListener("click", () => {
    close();
    undo();
  });
  const place = document.getElementById("toasts");
  place.replaceChildren(toast);
  // Above a dialog that is open, which lies above everything else of the page.
  place.hidePopover?.();
  place.showPopover?.();
  const wait = () => {
    if (!toast.matches(":hover, :focus-within")) close();
    else setTimeout(wait, 2000);
  };
  setTimeout(wait, undo ? 10_000 : 4000);
}

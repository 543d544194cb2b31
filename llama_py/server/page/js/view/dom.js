// Making elements. Texts become text nodes and nothing is ever parsed as HTML, so whatever a model
// writes stays text.

/**
 * An element with properties, attributes, listeners and children.
 *
 * @param {string} tag name of the element
 * @param {object} [props] `class`, `data` (an object for `dataset`), `onclick` and other listeners,
 *   properties of the element, or attributes; `undefined`, `null` and `false` leave one out
 * @param {...(Node|string|null|undefined|false)} children
 * @returns {HTMLElement}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) set(element, name, value);
  element.append(...children.flat().filter((child) => child || child === 0 || child === ""));
  return element;
}

function set(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name === "class") element.className = value;
  else if (name === "data") Object.assign(element.dataset, value);
  else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name in element && !name.startsWith("aria")) assign(element, name, value);
  else element.setAttribute(name, value === true ? "" : value);
}

// Some properties can only be read (`form`, `list`): their attributes can be written.
function assign(element, name, value) {
  try {
    element[name] = value;
  } catch {
    element.setAttribute(name, value === true ? "" : value);
  }
}

/**
 * Gives an element these children. Those that it has already are not touched, so that they keep the
 * selection, the focus and where they are scrolled to, and are not laid out again.
 */
export function fill(element, ...children) {
  const wanted = children.flat().filter(Boolean);
  const kept = new Set(wanted);
  for (const child of [...element.childNodes]) if (!kept.has(child)) child.remove();
  let place = element.firstChild;
  for (const child of wanted) {
    if (child === place) place = place.nextSibling;
    else element.insertBefore(child, place);
  }
  return element;
}

/** Sets a text only if it changed: what is written again is announced and laid out again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const PATHS = {
  add: "M12 5v14M5 12h14",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14ZM20 20l-4-4",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10v11H9zM6 15H5V4h10v2",
  done: "M5 12.5l4.5 4.5L19 7.5",
  again: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  edit: "M5 19h3.2L19 8.2 15.8 5 5 15.8zM13.5 7.3l3.2 3.2",
  remove: "M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10.2 10.5v6M13.8 10.5v6",
  before: "M14.5 6l-6 6 6 6",
  after: "M9.5 6l6 6-6 6",
  down: "M12 5v13M6.5 12.5 12 18l5.5-5.5",
  send: "M12 19V6M6.5 11.5 12 6l5.5 5.5",
  stop: "M7 7h10v10H7z",
  attach: "M19 11.5l-7.2 7.2a4.6 4.6 0 0 1-6.5-6.5l7.6-7.6a3.1 3.1 0 0 1 4.4 4.4l-7.5 7.5a1.6 1.6 0 0 1-2.2-2.2l6.7-6.8",
  picture: "M4 5h16v14H4zM4.5 17l5-5 4 4 2.5-2.5 3.5 3.5M15.5 9.5h.01",
  sound: "M5 10v4h3l4 3.5v-11L8 10zM15.5 9.2a4 4 0 0 1 0 5.6M18 6.8a7.4 7.4 0 0 1 0 10.4",
  microphone: "M12 4a2.6 2.6 0 0 0-2.6 2.6v5a2.6 2.6 0 0 0 5.2 0v-5A2.6 2.6 0 0 0 12 4ZM6.5 11.5a5.5 5.5 0 0 0 11 0M12 17v3.5",
  play: "M8 5.5v13l10.5-6.5z",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  onward: "M5 12h13M12.5 6.5 18 12l-5.5 5.5",
  tool: "M9 4.5c-2.2 0-2.5 1.2-2.5 3.2 0 2.6-.3 4.3-2.5 4.3 2.2 0 2.5 1.7 2.5 4.3 0 2 .3 3.2 2.5 3.2M15 4.5c2.2 0 2.5 1.2 2.5 3.2 0 2.6.3 4.3 2.5 4.3-2.2 0-2.5 1.7-2.5 4.3 0 2-.3 3.2-2.5 3.2",
  certainty: "M5 19v-5M10 19V9M15 19v-8M20 19V5",
  file: "M7 3.5h7l4 4v13H7zM14 3.5v4h4",
  warning: "M12 4.5 21 19.5H3zM12 10.5v4.2M12 17.2v.1",
  keyboard: "M3.5 7h17v10h-17zM7 10.2h.01M10.3 10.2h.01M13.6 10.2h.01M17 10.2h.01M8.5 14h7",
  save: "M12 4v10M7.5 10 12 14.5 16.5 10M5 19.5h14",
  load: "M12 15V5M7.5 9.5 12 5l4.5 4.5M5 19.5h14",
};

const SVG = "http://www.w3.org/2000/svg";

/** A line drawing of 24 by 24 units, hidden from assistive technology. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.dataset.icon = name;
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows only an icon; its name is read out, and shown on hover. */
export function iconButton(name, label, onclick, props = {}) {
  const classes = `icon-button ${props.class ?? ""}`.trim();
  const all = { ...props, type: "button", class: classes, title: label, "aria-label": label };
  return h("button", { ...all, onclick }, icon(name));
}

/** A button with an icon and one word; its name says more than the word. */
export function labelledButton(name, word, label, onclick) {
  const props = { type: "button", class: "button plain", title: label, "aria-label": label };
  return h("button", { ...props, onclick }, icon(name), h("span", {}, word));
}

/** A button with a text. */
export function textButton(label, onclick, props = {}) {
  return h("button", { type: "button", class: "button", onclick, ...props }, label);
}

/** Runs a function once in the next frame, however often it is asked for before. */
export function oncePerFrame(run) {
  let asked = 0;
  const ask = () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      run();
    });
  };
  ask.cancel = () => {
    cancelAnimationFrame(asked);
    asked = 0;
  };
  return ask;
}

/** Copies a text. Pages that did not come over https or from this machine have no clipboard API. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = h("textarea", { value: text, class: "unseen", "aria-hidden": "true" });
  const focused = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  focused?.focus();
  return undefined;
}

/** Hands the pieces of a text to the browser as a file to keep. */
export function download(name, pieces, type = "application/json") {
  const url = URL.createObjectURL(new Blob(pieces, { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Shows markdown while it grows. Every element remembers the text that it was made of; when the text
// has grown, only what changed is made again: mostly the end of the last block.

import { h } from "../view/dom.js";
import { parseBlocks } from "./blocks.js";
import { parseInline } from "./inline.js";
import { codeBlock, growCode } from "./code.js";

/** Quotes and lists inside each other; what is nested deeper is shown as plain text. */
const DEEPEST = 12;

/** Markdown in an element, which may grow. */
export class Markdown {
  #element;
  #text = "";
  // What begins before this place is finished, and its elements are in place.
  #settled = 0;
  // Elements of what may still change.
  #open = [];

  /** @param {HTMLElement} element its children belong to this object. */
  constructor(element) {
    this.#element = element;
  }

  /** Shows a text. One that begins with what is shown costs only what is new. */
  show(text) {
    if (text === this.#text) return;
    if (!text.startsWith(this.#text)) this.#restart();
    this.#text = text;
    const tail = text.slice(this.#settled);
    const blocks = parseBlocks(tail);
    showBlocks(this.#element, this.#open, blocks, 0);
    this.#settle(tail, blocks);
  }

  #restart() {
    this.#settled = 0;
    this.#open = [];
    this.#element.replaceChildren();
  }

  // A block can no longer change once two whole lines of a later one are there: whether a line begins
  // a table is known when the line below it is.
  #settle(tail, blocks) {
    const unfinished = lineCount(tail) - 1;
    let last = blocks.length - 1;
    while (last > 0 && blocks[last].line >= unfinished - 1) last -= 1;
    if (last <= 0) return;
    this.#settled += startOfLine(tail, blocks[last].line);
    this.#open.splice(0, last);
  }
}

/** An element with a text as markdown. */
export function markdown(text, props = { class: "prose" }) {
  const element = h("div", props);
  new Markdown(element).show(text);
  return element;
}

function lineCount(text) {
  let count = 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) count += 1;
  return count;
}

function startOfLine(text, line) {
  let at = 0;
  for (let left = line; left > 0; left -= 1) at = text.indexOf("\n", at) + 1;
  return at;
}

// -- blocks -----------------------------------------------------------------------------------------

/** Block that an element was made of. */
const made = new WeakMap();
/** Elements that an element shows: walking through its children again would take longer. */
const parts = new WeakMap();

function partsOf(element) {
  if (!parts.has(element)) parts.set(element, []);
  return parts.get(element);
}

/** Shows blocks at the end of an element, where the elements are those that showed them before. */
function showBlocks(parent, elements, blocks, depth) {
  blocks.forEach((block, index) => {
    const element = elements[index];
    const old = element && made.get(element);
    if (old?.source === block.source && old.type === block.type) return;
    if (old?.type === block.type && GROW[block.type]?.(element, block, old, depth)) {
      made.set(element, block);
      return;
    }
    const fresh = MAKE[block.type](block, depth);
    made.set(fresh, block);
    elements[index] = fresh;
    if (element) element.replaceWith(fresh);
    else parent.append(fresh);
  });
  cut(elements, blocks.length);
}

function cut(elements, length) {
  for (const element of elements.splice(length)) element.remove();
}

const MAKE = {
  paragraph: (block) => withInline(h("p"), block.text),
  heading: (block) => withInline(h(`h${Math.min(6, block.level + 2)}`), block.text),
  rule: () => h("hr"),
  code: (block) => codeBlock(block),
  quote: (block, depth) => nested(h("blockquote"), block.text, depth),
  list: makeList,
  table: makeTable,
};

// Each returns whether the element could be changed into the new block.
const GROW = {
  paragraph: (element, block) => Boolean(withInline(element, block.text)),
  code: (element, block, old) => growCode(element, block, old),
  quote: (element, block, old, depth) => Boolean(nested(element, block.text, depth)),
  list: growList,
  table: growTable,
};

/** Shows the blocks of a text in an element. */
function nested(element, text, depth) {
  if (depth < DEEPEST) showBlocks(element, partsOf(element), parseBlocks(text), depth + 1);
  else element.textContent = text;
  return element;
}

function makeList(block, depth) {
  const ordered = block.start !== null;
  const start = ordered && block.start !== 1 ? { start: block.start } : {};
  const list = h(ordered ? "ol" : "ul", start);
  growList(list, block, { items: [] }, depth);
  return list;
}

function growList(list, block, old, depth) {
  if ((block.start !== null) !== (list.tagName === "OL")) return false;
  list.classList.toggle("loose", block.loose);
  const elements = partsOf(list);
  block.items.forEach((item, index) => {
    if (old.items[index]?.source === item.source) return;
    const element = (elements[index] ??= list.appendChild(h("li")));
    const task = item.task !== undefined;
    element.classList.toggle("task", task);
    if (task) element.dataset.done = item.task === " " ? "no" : "yes";
    nested(element, item.text, depth);
  });
  cut(elements, block.items.length);
  return true;
}

function makeTable(block) {
  const table = h("table", {}, h("thead"), h("tbody"));
  // Wide tables scroll by themselves, also with the keyboard.
  const props = { class: "table", tabIndex: 0, role: "region", "aria-label": "Table" };
  const element = h("div", props, table);
  growTable(element, block, { rows: [], align: block.align });
  return element;
}

function growTable(element, block, old) {
  if (old.align.join() !== block.align.join()) return false;
  const table = element.firstElementChild;
  const rows = partsOf(element);
  block.rows.forEach((row, index) => {
    if (old.rows[index]?.join("\0") === row.join("\0")) return;
    const cells = row.map((cell, column) => makeCell(cell, index, block.align[column]));
    const fresh = h("tr", {}, cells);
    if (rows[index]) rows[index].replaceWith(fresh);
    else (index === 0 ? table.tHead : table.tBodies[0]).append(fresh);
    rows[index] = fresh;
  });
  cut(rows, block.rows.length);
  return true;
}

function makeCell(text, row, align) {
  const props = align === "start" ? {} : { class: align };
  return withInline(h(row === 0 ? "th" : "td", props), text);
}

// -- inside of blocks -------------------------------------------------------------------------------

/** Inline nodes that an element shows. */
const shown = new WeakMap();

function withInline(element, text) {
  const nodes = parseInline(text);
  patch(element, shown.get(element) ?? [], nodes);
  shown.set(element, nodes);
  return element;
}

function patch(element, old, nodes) {
  nodes.forEach((node, index) => {
    const before = old[index];
    if (before && same(before, node)) return;
    const place = before && element.childNodes[index];
    const grows = place && before.tag === "#text" && node.tag === "#text";
    if (grows && node.text.startsWith(before.text)) {
      place.appendData(node.text.slice(before.text.length));
    } else if (place) {
      place.replaceWith(makeInline(node));
    } else {
      element.append(makeInline(node));
    }
  });
  while (element.childNodes.length > nodes.length) element.lastChild.remove();
}

function same(one, other) {
  if (one.tag !== other.tag || one.text !== other.text || one.href !== other.href) return false;
  const [here, there] = [one.children ?? [], other.children ?? []];
  return here.length === there.length && here.every((child, index) => same(child, there[index]));
}

function makeInline(node) {
  if (node.tag === "#text") return document.createTextNode(node.text);
  if (node.tag === "code") return h("code", {}, node.text);
  if (node.tag === "formula") return h("code", { class: "formula" }, node.text);
  const props = node.tag === "a" ? linkProps(node.href) : {};
  return h(node.tag, props, ...(node.children ?? []).map(makeInline));
}

function linkProps(href) {
  return { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" };
}

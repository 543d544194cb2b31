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
  // What begins before this place is finished and its elements are in place.
  #settled = 0;
  #settledElements = 0;

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
    showBlocks(this.#element, blocks, 0, this.#settledElements);
    this.#settle(tail, blocks);
  }

  #restart() {
    this.#settled = 0;
    this.#settledElements = 0;
    this.#element.replaceChildren();
  }

  // A block can no longer change once a whole line of a later block is there.
  #settle(tail, blocks) {
    const unfinished = lineCount(tail) - 1;
    let last = blocks.length - 1;
    while (last > 0 && blocks[last].line >= unfinished) last -= 1;
    if (last <= 0) return;
    this.#settled += startOfLine(tail, blocks[last].line);
    this.#settledElements += last;
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

function showBlocks(parent, blocks, depth, first = 0) {
  blocks.forEach((block, index) => {
    const element = parent.children[first + index];
    const old = element && made.get(element);
    if (old?.source === block.source && old.type === block.type) return;
    if (old?.type === block.type && GROW[block.type]?.(element, block, old, depth)) {
      made.set(element, block);
      return;
    }
    const fresh = MAKE[block.type](block, depth);
    made.set(fresh, block);
    if (element) element.replaceWith(fresh);
    else parent.append(fresh);
  });
  while (parent.children.length > first + blocks.length) parent.lastElementChild.remove();
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
  if (depth < DEEPEST) showBlocks(element, parseBlocks(text), depth + 1);
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
  block.items.forEach((item, index) => {
    if (old.items[index]?.source === item.source) return;
    const element = list.children[index] ?? list.appendChild(h("li"));
    const task = item.task !== undefined;
    element.classList.toggle("task", task);
    if (task) element.dataset.done = item.task === " " ? "no" : "yes";
    nested(element, item.text, depth);
  });
  while (list.children.length > block.items.length) list.lastElementChild.remove();
  return true;
}

function makeTable(block) {
  const table = h("table", {}, h("thead"), h("tbody"));
  growTable(table.tHead.parentElement, block, { rows: [], align: block.align });
  // Wide tables scroll by themselves, also with the keyboard.
  return h("div", { class: "table", tabIndex: 0, role: "region", "aria-label": "Table" }, table);
}

function growTable(element, block, old) {
  if (old.align.join() !== block.align.join()) return false;
  const table = element.tagName === "TABLE" ? element : element.firstElementChild;
  block.rows.forEach((row, index) => {
    if (old.rows[index]?.join("\0") === row.join("\0")) return;
    const place = index === 0 ? table.tHead : table.tBodies[0];
    const shown = index === 0 ? place.children[0] : place.children[index - 1];
    const fresh = h("tr", {}, row.map((cell, column) => makeCell(cell, index, block.align[column])));
    if (shown) shown.replaceWith(fresh);
    else place.append(fresh);
  });
  while (table.tBodies[0].children.length >= block.rows.length && table.tBodies[0].lastChild) {
    table.tBodies[0].lastChild.remove();
  }
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
  const props = node.tag === "a" ? linkProps(node.href) : {};
  return h(node.tag, props, ...(node.children ?? []).map(makeInline));
}

function linkProps(href) {
  return { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" };
}

// Markdown inside a block: code spans, emphasis, links, line breaks. The result is a tree of plain
// objects; `render.js` makes elements of it.
//
// One pass from left to right and a stack of delimiters, as CommonMark describes it, so the time is
// linear in the length of the text, whatever is in it. HTML is text here.

/**
 * @typedef {object} Inline
 * @property {string} tag "#text", "br", "code", "formula", "em", "strong", "del", "a"
 * @property {string} [text] of "#text", "code" and "formula"
 * @property {string} [href] of "a"
 * @property {Inline[]} [children]
 */

/** Elements inside each other; whatever is nested deeper is shown without its emphasis. */
const DEEPEST = 24;
const SPECIAL = /[\\`*_~[\]<&!$\n]|https?:\/\//g;
const BARE_LINK = /https?:\/\/[^\s<>"`]{1,2000}/y;
const ANGLE_LINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BREAK_TAG = /<br ?\/?>/iy;
// Every repetition has a limit, which also limits the time that a match may take.
const DESTINATION =
  /\(\s{0,8}(?:<([^<>\n]{0,2000})>|([^\s()<>]{0,2000}(?:\([^\s()]{0,500}\)[^\s()<>]{0,2000})?))(?:\s{1,8}(?:"[^"\n]{0,500}"|'[^'\n]{0,500}'))?\s{0,8}\)/y;
const ENTITY = /&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,6}));/iy;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const ESCAPABLE = /[!-/:-@[-`{-~]/;
/** How formulas of LaTeX begin and end. */
const FORMULAS = { "\\(": "\\)", "\\[": "\\]", "$$": "$$" };
/** One in single dollars, which are mostly prices: it has something that prices have not. */
const DOLLARS = /\$(?![\s$])((?:[^$\n\\]|\\.){1,300}?)(?<!\s)\$(?![\d$])/y;
const LIKE_A_FORMULA = /[\\^_{]/;
const SPACE = /\s/;
const PUNCTUATION = /[\p{P}\p{S}]/u;

/**
 * Parses the text of one block.
 *
 * @param {string} text
 * @returns {Inline[]}
 */
export function parseInline(text) {
  return new Parser(text).parse();
}

/** The address of a link if it may be followed: the web and e-mail, nothing that runs. */
export function safeHref(address) {
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null; // not absolute: there is no page that it could be relative to
  }
}

class Parser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    // Parts in order; delimiters and brackets are told later what they open and close.
    this.parts = [];
    this.delimiters = [];
    this.brackets = [];
    this.ticks = null;
    this.formulaEnds = new Map();
  }

  parse() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(text);
      const next = found ? found.index : text.length;
      if (next > this.at) this.literal(text.slice(this.at, next));
      this.at = next;
      if (found) this.special(found[0]);
    }
    this.pair(0);
    return build(this.parts);
  }

  literal(text) {
    this.parts.push({ kind: "text", text });
  }

  special(sign) {
    if (sign === "\\") this.backslash();
    else if (sign === "`") this.codeSpan();
    else if (sign === "$") this.dollar();
    else if (sign === "*" || sign === "_" || sign === "~") this.run(sign);
    else if (sign === "[") this.openBracket(1, false);
    else if (sign === "]") this.closeBracket();
    else if (sign === "<") this.angle();
    else if (sign === "&") this.entity();
    else if (sign === "!") this.image();
    else if (sign === "\n") this.lineBreak();
    else this.bareLink();
  }

  take(length) {
    this.literal(this.text.slice(this.at, this.at + length));
    this.at += length;
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  backslash() {
    const next = this.text[this.at + 1] ?? "";
    if ((next === "(" || next === "[") && this.formula(`\\${next}`)) return;
    if (next === "\n") {
      this.at += 1;
    } else if (ESCAPABLE.test(next)) {
      this.at += 1;
      this.take(1);
    } else {
      this.take(1);
    }
  }

  lineBreak() {
    const last = this.parts.at(-1);
    if (last?.kind === "text") last.text = last.text.trimEnd();
    // A line of a chat that ends is meant to end; CommonMark would join it with the next one.
    this.parts.push({ kind: "node", node: { tag: "br" } });
    this.at += 1;
    while (this.text[this.at] === " ") this.at += 1;
  }

  entity() {
    const found = this.match(ENTITY);
    const text = found && decode(found);
    if (!text) return this.take(1);
    this.literal(text);
    this.at += found[0].length;
    return undefined;
  }

  angle() {
    const found = this.match(ANGLE_LINK);
    const broken = found ? null : this.match(BREAK_TAG);
    if (broken) {
      this.parts.push({ kind: "node", node: { tag: "br" } });
      this.at += broken[0].length;
    } else if (found && safeHref(found[1])) {
      this.link(found[1], found[1]);
      this.at += found[0].length;
    } else {
      this.take(1);
    }
  }

  bareLink() {
    const before = this.text[this.at - 1] ?? " ";
    const found = /\w/.test(before) ? null : this.match(BARE_LINK);
    const address = found && withoutTail(found[0]);
    if (!address || !safeHref(address) || this.brackets.some((each) => each.active)) {
      return this.take(4);
    }
    this.link(address, address);
    this.at += address.length;
    return undefined;
  }

  link(href, text) {
    const children = [{ tag: "#text", text }];
    this.parts.push({ kind: "node", node: { tag: "a", href: safeHref(href), children } });
  }

  // -- formulas -----------------------------------------------------------------------------------

  // They are shown as they were written, which is how they can be read and copied: escapes and
  // emphasis would take their backslashes, stars and underscores.

  dollar() {
    if (this.text[this.at + 1] === "$" && this.formula("$$")) return undefined;
    const found = this.match(DOLLARS);
    if (!found || !LIKE_A_FORMULA.test(found[1])) return this.take(1);
    return this.takeFormula(found[0].length);
  }

  /** Takes a formula that begins here with these signs, if it ends. */
  formula(begin) {
    const end = this.formulaEnd(FORMULAS[begin], this.at + begin.length);
    if (end <= this.at + begin.length) return false;
    this.takeFormula(end + FORMULAS[begin].length - this.at);
    return true;
  }

  takeFormula(length) {
    const text = this.text.slice(this.at, this.at + length);
    this.parts.push({ kind: "node", node: { tag: "formula", text } });
    this.at += length;
  }

  // What was found is remembered, so that many that do not end cost nothing.
  formulaEnd(signs, from) {
    let end = this.formulaEnds.get(signs) ?? 0;
    if (end >= 0 && end < from) {
      end = this.text.indexOf(signs, from);
      this.formulaEnds.set(signs, end);
    }
    return end;
  }

  // -- code ---------------------------------------------------------------------------------------

  codeSpan() {
    const start = this.at;
    let length = 1;
    while (this.text[start + length] === "`") length += 1;
    const end = this.closingTicks(start + length, length);
    if (end < 0) return this.take(length);
    const code = this.text.slice(start + length, end).replaceAll("\n", " ");
    const padded = /^ .* $/.test(code) && code.trim() !== "";
    const text = padded ? code.slice(1, -1) : code;
    this.parts.push({ kind: "node", node: { tag: "code", text } });
    this.at = end + length;
    return undefined;
  }

  // Where runs of each length are is found once, so that many that are not closed cost nothing.
  closingTicks(from, length) {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const run of this.text.matchAll(/`+/g)) {
        const places = this.ticks.get(run[0].length) ?? { list: [], next: 0 };
        places.list.push(run.index);
        this.ticks.set(run[0].length, places);
      }
    }
    const places = this.ticks.get(length);
    if (!places) return -1;
    while (places.next < places.list.length && places.list[places.next] < from) places.next += 1;
    return places.list[places.next] ?? -1;
  }

  // -- emphasis -----------------------------------------------------------------------------------

  run(sign) {
    let length = 1;
    while (this.text[this.at + length] === sign) length += 1;
    if (sign === "~" && length !== 2) return this.take(length);
    const part = {
      kind: "delimiter",
      sign,
      left: length,
      length,
      ...flanking(this.text, this.at, length, sign),
      opens: [],
      closes: [],
    };
    this.parts.push(part);
    if (part.canOpen || part.canClose) this.delimiters.push(part);
    this.at += length;
    return undefined;
  }

  /** Pairs the delimiters above a place in the stack, and takes them off it. */
  pair(bottom) {
    const stack = this.delimiters;
    const openers = [];
    // For each kind of closer, how far down its openers were looked for in vain.
    const inVain = new Map();
    for (let place = bottom; place < stack.length; place += 1) {
      const closer = stack[place];
      if (closer.canClose) this.close(closer, openers, inVain);
      if (closer.canOpen && closer.left > 0) openers.push(closer);
    }
    stack.length = bottom;
  }

  close(closer, openers, inVain) {
    const kind = `${closer.sign}${closer.canOpen}${closer.length % 3}`;
    while (closer.left > 0) {
      let place = openers.length - 1;
      const floor = Math.min(inVain.get(kind) ?? 0, openers.length);
      while (place >= floor && !fits(openers[place], closer)) place -= 1;
      if (place < floor) {
        inVain.set(kind, openers.length);
        return;
      }
      const opener = openers[place];
      openers.length = place + 1; // those between the two open nothing any more
      for (const [each, level] of inVain) if (level > place) inVain.set(each, place);
      wrap(opener, closer);
      if (opener.left === 0) openers.pop();
    }
  }

  // -- links --------------------------------------------------------------------------------------

  openBracket(length, image) {
    const part = { kind: "bracket", text: image ? "![" : "[", opens: null, image };
    this.parts.push(part);
    this.brackets.push({ part, active: true, bottom: this.delimiters.length });
    this.at += length;
  }

  image() {
    if (this.text[this.at + 1] === "[") this.openBracket(2, true);
    else this.take(1);
  }

  closeBracket() {
    const opener = this.brackets.pop();
    this.at += 1;
    const found = opener?.active ? this.match(DESTINATION) : null;
    const href = found && safeHref(found[1] ?? found[2]);
    if (!href) {
      this.literal("]");
      return;
    }
    this.at += found[0].length;
    this.pair(opener.bottom);
    opener.part.opens = { href, image: opener.part.image };
    this.parts.push({ kind: "closing" });
    if (!opener.part.image) for (const each of this.brackets) each.active = false;
    if (!opener.part.image) this.brackets.length = 0;
  }
}

function decode([, decimal, hexadecimal, name]) {
  if (name) return ENTITIES[name.toLowerCase()];
  const code = decimal ? Number.parseInt(decimal, 10) : Number.parseInt(hexadecimal, 16);
  const valid = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
  return valid ? String.fromCodePoint(code) : "\ufffd";
}

/** A bare address without the punctuation of the sentence around it. */
function withoutTail(address) {
  let end = address.length;
  while (end > 0 && /[.,;:!?'"*_~)\]]/.test(address[end - 1])) {
    const open = address.lastIndexOf("(", end - 1);
    if (address[end - 1] === ")" && open > address.lastIndexOf(")", end - 2)) break;
    end -= 1;
  }
  return address.slice(0, end);
}

/** Whether a run of delimiters may open or close emphasis. */
function flanking(text, at, length, sign) {
  const before = text[at - 1] ?? " ";
  const after = text[at + length] ?? " ";
  const spaceBefore = SPACE.test(before);
  const spaceAfter = SPACE.test(after);
  const signBefore = PUNCTUATION.test(before);
  const signAfter = PUNCTUATION.test(after);
  const left = !spaceAfter && (!signAfter || spaceBefore || signBefore);
  const right = !spaceBefore && (!signBefore || spaceAfter || signAfter);
  if (sign !== "_") return { canOpen: left, canClose: right };
  return { canOpen: left && (!right || signBefore), canClose: right && (!left || signAfter) };
}

/** CommonMark's rule of three: `*a**b*` is one emphasis around `a**b`. */
function fits(opener, closer) {
  if (opener.sign !== closer.sign) return false;
  if (!opener.canClose && !closer.canOpen) return true;
  const sum = opener.length + closer.length;
  return sum % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
}

function wrap(opener, closer) {
  const width = opener.left >= 2 && closer.left >= 2 ? 2 : 1;
  const tag = closer.sign === "~" ? "del" : width === 2 ? "strong" : "em";
  opener.left -= width;
  closer.left -= width;
  opener.opens.unshift(tag);
  closer.closes.push(tag);
}

/** Parts to a tree. */
function build(parts) {
  const root = [];
  const open = [{ children: root, real: true }];
  const enter = (node) => {
    const real = open.length <= DEEPEST;
    if (real) open.at(-1).children.push(node);
    open.push({ children: real ? node.children : open.at(-1).children });
  };
  const leave = () => open.length > 1 && open.pop();
  const text = (words) => addText(open.at(-1).children, words);
  for (const part of parts) {
    if (part.kind === "text") text(part.text);
    else if (part.kind === "node") open.at(-1).children.push(part.node);
    else if (part.kind === "closing") leave();
    else if (part.kind === "bracket") {
      if (part.opens) enter(linkNode(part.opens));
      else text(part.text);
    } else {
      part.closes.forEach(leave);
      if (part.left) text(part.sign.repeat(part.left));
      for (const tag of part.opens) enter({ tag, children: [] });
    }
  }
  return root;
}

// An image would be fetched from wherever a model says, with whatever it puts into the address.
function linkNode({ href, image }) {
  const children = image ? [{ tag: "#text", text: "Image: " }] : [];
  return { tag: "a", href, children };
}

function addText(children, text) {
  const last = children.at(-1);
  if (last?.tag === "#text") last.text += text;
  else if (text) children.push({ tag: "#text", text });
}

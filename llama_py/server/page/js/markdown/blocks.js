// Markdown's blocks: paragraphs, headings, lists, quotes, tables, code. Lines in, plain objects out.
// What is inside lists and quotes is text again, and parsed when it is shown (`render.js`).

/**
 * @typedef {object} Block
 * @property {"paragraph"|"heading"|"code"|"quote"|"list"|"table"|"rule"} type
 * @property {number} line the line where it begins
 * @property {string} source its lines: blocks with the same source look the same
 * @property {string} [text] of paragraphs, headings, quotes (without the signs) and code
 * @property {number} [level] of headings
 * @property {string} [language] of code
 * @property {boolean} [closed] of code: its end was there
 * @property {{source: string, text: string, task: string|undefined}[]} [items] of lists
 * @property {number|null} [start] of lists: the first number, or null where there are bullets
 * @property {boolean} [loose] of lists: there are empty lines between the items
 * @property {string[][]} [rows] of tables; the first one is the head
 * @property {string[]} [align] of tables, for each column
 */

const FENCE = /^( {0,3})(?:(`{3,})([^`]*)|(~{3,})(.*))$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?! )|( )|$)/;
const TASK = /^\[([ xX])\] +/;
const DELIMITER_CELL = /^:?-+:?$/;
/** A line that is longer is text: the patterns above are not tried on it. */
const LONGEST_LINE = 20_000;

/**
 * @param {string} text
 * @returns {Block[]}
 */
export function parseBlocks(text) {
  const lines = text.split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const { end, ...block } = readBlock(lines, at);
    blocks.push({ ...block, line: at, source: lines.slice(at, end).join("\n") });
    at = end;
  }
  return blocks;
}

const isBlank = (line) => line === "" || line.trim() === "";

function readBlock(lines, at) {
  const line = lines[at];
  if (line.length > LONGEST_LINE) return readParagraph(lines, at);
  const fence = FENCE.exec(line);
  if (fence) return readCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return readHeading(heading, at);
  if (RULE.test(line)) return { type: "rule", end: at + 1 };
  if (QUOTE.test(line)) return readQuote(lines, at);
  if (ITEM.test(line)) return readList(lines, at);
  if (startsTable(lines, at)) return readTable(lines, at);
  return readParagraph(lines, at);
}

/** Whether a line begins something else than the paragraph, quote or item before it. */
function interrupts(lines, at) {
  const line = lines[at];
  if (line.length > LONGEST_LINE) return false;
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const item = ITEM.exec(line);
  // A number at the beginning of a line is mostly not a list that begins in mid-sentence.
  if (item && line.length > item[0].length && !/^ *\d/.test(line)) return true;
  return (item && /^ *1[.)] /.test(line)) || startsTable(lines, at);
}

function readHeading(found, at) {
  const text = withoutClosing((found[2] ?? "").trim());
  return { type: "heading", level: found[1].length, text, end: at + 1 };
}

/** `## Title ##` is `Title`, and `## C#` is `C#`. */
function withoutClosing(text) {
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  return end === 0 || /[ \t]/.test(text[end - 1]) ? text.slice(0, end).trimEnd() : text;
}

function readParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n").trimEnd();
  return { type: "paragraph", text, end };
}

function readCode(lines, at, [, indent, ticks, afterTicks, tildes, afterTildes]) {
  const fence = ticks ?? tildes;
  const isEnd = (line) => {
    const trimmed = line.trim();
    return trimmed.length >= fence.length && trimmed === fence[0].repeat(trimmed.length);
  };
  let end = at + 1;
  while (end < lines.length && !isEnd(lines[end])) end += 1;
  const closed = end < lines.length;
  const body = lines.slice(at + 1, end).map((line) => withoutIndent(line, indent.length));
  const language = (afterTicks ?? afterTildes).trim().split(/\s/)[0];
  return { type: "code", language, text: body.join("\n"), closed, end: closed ? end + 1 : end };
}

function withoutIndent(line, most) {
  let count = 0;
  while (count < most && line[count] === " ") count += 1;
  return count ? line.slice(count) : line;
}

function readQuote(lines, at) {
  const inner = [];
  let end = at;
  for (; end < lines.length && !isBlank(lines[end]); end += 1) {
    const line = lines[end];
    const quoted = QUOTE.exec(line);
    if (quoted) inner.push(line.slice(quoted[0].length));
    else if (interrupts(lines, end)) break;
    else inner.push(line);
  }
  return { type: "quote", text: inner.join("\n"), end };
}

// -- lists ------------------------------------------------------------------------------------------

function readList(lines, at) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const base = first[1].length;
  const items = [];
  let loose = false;
  let end = at;
  while (end < lines.length) {
    const marker = itemAt(lines[end], ordered, base);
    if (!marker) break;
    const item = readItem(lines, end, marker);
    items.push(item.item);
    loose ||= item.loose;
    end = item.end;
    const next = skipBlank(lines, end);
    if (next > end && next < lines.length && itemAt(lines[next], ordered, base)) {
      loose = true;
      end = next;
    }
  }
  const start = ordered ? Number.parseInt(first[2], 10) : null;
  return { type: "list", start, items, loose, end };
}

/** The marker of an item of this list, not of one inside or of another kind. */
function itemAt(line, ordered, base) {
  if (line.length > LONGEST_LINE || RULE.test(line)) return null;
  const found = ITEM.exec(line);
  const same = found && /\d/.test(found[2]) === ordered && found[1].length < base + 2;
  return same ? found : null;
}

function skipBlank(lines, at) {
  let next = at;
  while (next < lines.length && isBlank(lines[next])) next += 1;
  return next;
}

function readItem(lines, at, marker) {
  const indent = marker[1].length + marker[2].length + (marker[3] ?? marker[4] ?? " ").length;
  const inner = [lines[at].slice(marker[0].length)];
  let end = at + 1;
  let loose = false;
  while (end < lines.length) {
    const next = skipBlank(lines, end);
    if (next === lines.length || !belongs(lines, next, next > end, marker)) break;
    if (next > end) {
      loose ||= !ITEM.test(lines[next].trimStart());
      inner.push("");
    }
    inner.push(withoutIndent(lines[next], indent));
    end = next + 1;
  }
  return { item: makeItem(inner), loose, end };
}

/** Whether a line continues an item. Models often indent less than the text of the item. */
function belongs(lines, at, afterBlank, marker) {
  const line = lines[at];
  const indent = line.length - line.trimStart().length;
  if (indent >= marker[1].length + 2) return true;
  return !afterBlank && !ITEM.test(line) && !interrupts(lines, at);
}

function makeItem(inner) {
  const task = TASK.exec(inner[0]);
  const source = inner.join("\n");
  const text = task ? source.slice(task[0].length) : source;
  return { source, text, task: task?.[1] };
}

// -- tables -----------------------------------------------------------------------------------------

function startsTable(lines, at) {
  const next = lines[at + 1];
  if (next === undefined || !lines[at].includes("|") || !/^[ \t|:-]+$/.test(next)) return false;
  const delimiters = cellsOf(next);
  const sound = delimiters.length > 0 && delimiters.every((cell) => DELIMITER_CELL.test(cell));
  return sound && next.includes("-") && cellsOf(lines[at]).length === delimiters.length;
}

function readTable(lines, at) {
  const align = cellsOf(lines[at + 1]).map((cell) => {
    if (!cell.endsWith(":")) return "start";
    return cell.startsWith(":") ? "center" : "end";
  });
  const rows = [cellsOf(lines[at])];
  let end = at + 2;
  for (; end < lines.length && !isBlank(lines[end]); end += 1) {
    if (!lines[end].includes("|")) break;
    const cells = cellsOf(lines[end]).slice(0, align.length);
    rows.push([...cells, ...Array(align.length - cells.length).fill("")]);
  }
  return { type: "table", align, rows, end };
}

/** The cells of a row; a sign behind a backslash or inside code separates nothing. */
function cellsOf(line) {
  const cells = [];
  let cell = "";
  let inCode = false;
  const trimmed = line.trim().replace(/^\|/, "");
  for (let at = 0; at < trimmed.length; at += 1) {
    const sign = trimmed[at];
    if (sign === "\\" && trimmed[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (sign === "|" && !inCode) {
      cells.push(cell.trim());
      cell = "";
    } else {
      if (sign === "`") inCode = !inCode;
      cell += sign;
    }
  }
  if (cell.trim()) cells.push(cell.trim());
  return cells;
}

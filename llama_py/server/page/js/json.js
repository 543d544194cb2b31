// JSON for people: laid out, with its parts told apart by colour.

import { h } from "./view/dom.js";

/** Longer texts are shown as they are: making elements of them would take seconds. */
const LONGEST = 100_000;
const TOKEN =
  /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[^"\w-]+|./gs;

/** Whether a text is one JSON object or array. */
export function isJson(text) {
  const trimmed = text.trim();
  if (!/^[{[]/.test(trimmed) || !/[}\]]$/.test(trimmed)) return false;
  try {
    JSON.parse(trimmed);
    return true;
  } catch {
    return false;
  }
}

/** Whether a text that may still grow looks like the beginning of JSON, and not of a sentence. */
export function beginsAsJson(text) {
  return /^\s*(?:\{\s*(?:["}]|$)|\[\s*(?:[[{"\d\]]|$))/.test(text) && !/^\s*\[[^\]]*\]\(/.test(text);
}

/** JSON with an indentation of two, or the text itself where it is none. */
export function laidOut(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Nodes for a JSON text, as it is written. */
export function jsonLines(text) {
  if (text.length > LONGEST) return [document.createTextNode(text)];
  return Array.from(text.matchAll(TOKEN), ([token, string, colon]) => {
    if (string && colon) return h("span", { class: "json-key" }, token);
    const kind = string ? "string" : kindOf(token);
    return kind ? h("span", { class: `json-${kind}` }, token) : document.createTextNode(token);
  });
}

function kindOf(token) {
  if (/^-?\d/.test(token)) return "number";
  return /^(true|false|null)$/.test(token) ? "word" : null;
}

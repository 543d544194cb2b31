// Blocks of code: the language, a button that copies, and lines that scroll by themselves.

import { copyText, h, icon } from "../view/dom.js";
import { isJson, jsonLines } from "../json.js";

/** @param {import("./blocks.js").Block} block */
export function codeBlock(block) {
  const { language } = block;
  const label = language ? `Code in ${language}` : "Code";
  const code = h("code");
  addText(code, block.text);
  const region = { tabIndex: 0, role: "region", "aria-label": label };
  const figure = h(
    "figure",
    { class: "code", data: { language } },
    h("figcaption", {}, h("span", {}, language || "text"), copyButton(() => code.textContent)),
    h("pre", region, code),
  );
  finish(figure, block);
  return figure;
}

/** Gives a block of code its new text, by what it ends with. Returns false if it is another block. */
export function growCode(figure, block, old) {
  if (old.closed || block.language !== old.language) return false;
  const code = figure.querySelector("code");
  // What may have been the first signs of a last line with the fence is not a code then.
  if (old.text.startsWith(block.text)) cutText(code, old.text.length - block.text.length);
  else if (block.text.startsWith(old.text)) addText(code, block.text.slice(old.text.length));
  else return false;
  finish(figure, block);
  return true;
}

/** Lines that stand together: when a text grows, only the last of these is laid out again. */
const GROUP = 40;

/** Adds a text to what an element of code has been given by this function. */
export function addText(code, text) {
  let group = code.lastChild;
  let room = GROUP - (group?.textContent.split("\n").length ?? 1) + 1;
  for (let at = 0; at < text.length; ) {
    if (!group || room === 0) {
      const fresh = document.createTextNode("");
      group = code.appendChild(group ? h("span", { class: "lines" }, fresh) : fresh);
      room = GROUP;
    }
    let end = at;
    for (; room > 0 && end < text.length; room -= 1) end = endOfLine(text, end);
    // A line that is not at its end goes on in this group.
    if (text[end - 1] !== "\n") room += 1;
    (group.firstChild ?? group).appendData(text.slice(at, end));
    at = end;
  }
}

function endOfLine(text, from) {
  const at = text.indexOf("\n", from);
  return at < 0 ? text.length : at + 1;
}

/** Takes this many characters from the end. */
function cutText(code, length) {
  for (let left = length; left > 0; ) {
    const group = code.lastChild;
    const text = group.firstChild ?? group;
    const here = Math.min(left, text.length);
    text.deleteData(text.length - here, here);
    if (!text.length) group.remove();
    left -= here;
  }
}

// JSON is coloured once it is complete; its text stays as the model wrote it.
function finish(figure, block) {
  if (!block.closed || !isJson(block.text) || !/^(json|)$/i.test(block.language)) return;
  figure.querySelector("code").replaceChildren(...jsonLines(block.text));
}

/** A button that copies a text and says so for a moment. */
export function copyButton(textOf, label = "Copy") {
  const words = h("span", {}, label);
  const button = h("button", { type: "button", class: "copy" }, icon("copy"), words);
  button.addEventListener("click", async () => {
    await copyText(textOf());
    words.textContent = "Copied";
    setTimeout(() => (words.textContent = label), 1600);
  });
  return button;
}

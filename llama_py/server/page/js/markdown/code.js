// Blocks of code: the language, a button that copies, and lines that scroll by themselves.

import { copyText, h, icon } from "../view/dom.js";
import { isJson, jsonLines } from "../json.js";

/** @param {import("./blocks.js").Block} block */
export function codeBlock(block) {
  const { language } = block;
  const label = language ? `Code in ${language}` : "Code";
  const code = h("code", {}, block.text);
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

/** Adds to a block what is new in its text. Returns false if it is another block. */
export function growCode(figure, block, old) {
  if (old.closed || block.language !== old.language || !block.text.startsWith(old.text)) return false;
  const code = figure.querySelector("code");
  if (code.firstChild) code.firstChild.appendData(block.text.slice(old.text.length));
  else code.append(block.text);
  finish(figure, block);
  return true;
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

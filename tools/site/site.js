// What the theme leaves out, for those who use a keyboard or a screen reader.

// The commands of a console, without prompts and what they print.
function commands(text) {
  const lines = [];
  let goesOn = false;
  for (const line of text.split("\n")) {
    if (line.startsWith("$ ") || goesOn) lines.push(line.replace(/^\$ /, ""));
    goesOn = (line.startsWith("$ ") || goesOn) && line.endsWith("\\");
  }
  return lines.join("\n");
}

function mend() {
  for (const button of document.querySelectorAll(".language-console .md-code__button:not([data-clipboard-text])")) {
    const shown = button.closest(".language-console").querySelector("code");
    const text = shown ? commands(shown.textContent) : "";
    if (text) button.dataset.clipboardText = text;
  }
  for (const search of document.querySelectorAll(".md-search:not([aria-label])")) {
    search.setAttribute("aria-label", "Search");
  }
  // A button beside each block of code is no way through the page.
  for (const buttons of document.querySelectorAll(".md-code__nav:not([role])")) {
    buttons.setAttribute("role", "none");
  }
  // What is wider than the window can be scrolled with the keys.
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    table.tabIndex = 0;
  }
  // The corner of a table is not a heading of anything.
  for (const corner of document.querySelectorAll("th:empty")) {
    corner.replaceWith(document.createElement("td"));
  }
}

mend();
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });

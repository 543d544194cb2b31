// What the theme leaves out, for those who use a keyboard or a screen reader.

function mend() {
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
  // The corner of a table is no heading of anything.
  for (const corner of document.querySelectorAll("th:empty")) {
    corner.replaceWith(document.createElement("td"));
  }
}

mend();
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });

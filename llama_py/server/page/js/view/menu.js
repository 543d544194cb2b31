// A menu that opens at a button: arrow keys, Escape, and the focus goes back to the button.

import { h, icon } from "./dom.js";

/**
 * Opens a menu.
 *
 * @param {HTMLElement} button where it opens
 * @param {({label: string, icon: string, run: () => void, danger?: boolean, whyNot?: string}|false)[]}
 *   entries `whyNot`: in words, if it cannot be chosen
 */
export function openMenu(button, entries) {
  const close = () => {
    menu.remove();
    button.setAttribute("aria-expanded", "false");
    removeEventListener("pointerdown", outside, true);
    removeEventListener("resize", close);
    removeEventListener("scroll", close, true);
  };
  const outside = (event) => menu.contains(event.target) || close();
  const items = entries.filter(Boolean).map((entry) => menuItem(entry, close, button));
  const menu = h("div", { class: "menu", role: "menu", onkeydown: (e) => keys(e, items, close, button) });
  menu.append(...items);
  (button.closest("dialog") ?? document.body).append(menu);
  place(menu, button);
  button.setAttribute("aria-expanded", "true");
  addEventListener("pointerdown", outside, true);
  addEventListener("resize", close);
  addEventListener("scroll", close, true);
  items[0].focus({ preventScroll: true });
}

function menuItem({ label, icon: name, run, danger, whyNot }, close, button) {
  const choose = () => {
    if (whyNot) return;
    close();
    button.focus();
    run();
  };
  const props = { type: "button", role: "menuitem", tabIndex: -1, class: danger ? "danger" : "" };
  if (whyNot) props["aria-disabled"] = "true";
  const words = h("span", {}, label, whyNot && h("small", {}, whyNot));
  return h("button", { ...props, onclick: choose }, icon(name), words);
}

function keys(event, items, close, button) {
  const at = items.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    items[(to + items.length) % items.length].focus();
  } else if (event.key === "Escape" || event.key === "Tab") {
    event.preventDefault();
    event.stopPropagation();
    close();
    button.focus();
  }
}

/** Below the button, or above it where there is no room; inside the window. */
function place(menu, button) {
  const at = button.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  const below = at.bottom + 4 + height <= innerHeight;
  menu.style.top = `${below ? at.bottom + 4 : Math.max(8, at.top - height - 4)}px`;
  menu.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
}

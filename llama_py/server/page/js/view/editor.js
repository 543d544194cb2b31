// A text that is changed where it stands.

import { h } from "./dom.js";

/**
 * Puts a form in place of an element until it is sent or cancelled. The focus goes back to where it
 * came from.
 *
 * @param {HTMLElement} element
 * @param {object} parts
 * @param {string} parts.text
 * @param {string} parts.label
 * @param {Object<string, (text: string) => void>} parts.buttons the first one is also Enter
 */
export function editInPlace(element, parts) {
  const before = document.activeElement;
  const done = () => {
    form.replaceWith(element);
    before.focus();
  };
  const form = editor({ ...parts, done });
  element.replaceWith(form);
  form.querySelector("textarea").focus();
}

function editor({ text, label, buttons, done }) {
  const field = h("textarea", { value: text, "aria-label": label });
  const use = (run) => {
    done();
    run(field.value);
  };
  const cancel = h("button", { type: "button", class: "button", onclick: done }, "Cancel");
  const rest = Object.entries(buttons).map(([name, run], index) =>
    h("button", { type: index ? "button" : "submit", class: index ? "button" : "button main", onclick: index ? () => use(run) : null }, name),
  );
  const form = h("form", { class: "editor" }, field, h("div", { class: "buttons" }, cancel, ...rest.reverse()));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    use(Object.values(buttons)[0]);
  });
  field.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      done();
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  const grow = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight + 2}px`;
  };
  field.addEventListener("input", grow);
  requestAnimationFrame(grow);
  return form;
}

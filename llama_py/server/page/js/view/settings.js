// The settings of a conversation and of the page, in a sheet at the side. What is changed holds at
// once; nothing has to be confirmed.

import { PARAMETERS } from "../request.js";
import { plural, tokens } from "../words.js";
import { openDialog } from "./dialogs.js";
import { h, textButton } from "./dom.js";

/**
 * @param {object} parts
 * @param {object} parts.record of the conversation; its `system` and `options` are changed
 * @param {object} parts.defaults of the server, by parameter
 * @param {object} parts.prefs
 * @param {object} parts.actions `changed`, `changedPage`, `enterKey`, `exportAll`, `importAll`,
 *   `sessions`, `forgetSession`, `keepDefaults`
 * @param {string} [parts.focus] the option to begin at
 */
export function openSettings({ record, defaults, prefs, actions, focus }) {
  const { options } = record;
  const changed = () => actions.changed();
  const sheet = openDialog(
    "Settings",
    { class: "sheet" },
    h(
      "form",
      { class: "form", onsubmit: (event) => event.preventDefault() },
      section("This conversation", [
        systemField(record, changed),
        overflowField(options, changed),
        h("div", { class: "grid" }, PARAMETERS.map((each) => parameterField(each, options, defaults, changed))),
        stopField(options, changed),
        thinkingField(options, changed),
        checkbox("logprobs", "Record how certain the model is of each token", Boolean(options.logprobs), (on) => {
          if (on) options.logprobs = true;
          else delete options.logprobs;
          changed();
        }),
        jsonField({
          id: "tools",
          label: "Tools",
          help: "A JSON list of functions that the model may call. You write what they return.",
          read: () => options.tools,
          write: (value) => set(options, "tools", value, changed),
          check: (value) => (Array.isArray(value) ? "" : "Tools are a list: [ … ]."),
        }),
        jsonField({
          id: "schema",
          label: "JSON schema of the replies",
          help: "The model can then only write what fits it.",
          read: () => options.schema,
          write: (value) => set(options, "schema", value, changed),
          check: (value) => (isObject(value) ? "" : "A schema is an object: { … }."),
        }),
        textButton("Use all this for new conversations", actions.keepDefaults),
      ]),
      section("This page", pageFields(prefs, actions)),
      section("Memory of the server", [memoryOf(record, actions)]),
    ),
  );
  const at = focus && sheet.querySelector(`#set-${focus}`);
  if (at) {
    at.focus();
    at.scrollIntoView({ block: "center" });
  }
  return sheet;
}

function section(title, children) {
  return h("section", {}, h("h3", {}, title), ...children);
}

function set(options, name, value, changed) {
  if (value === undefined) delete options[name];
  else options[name] = value;
  changed();
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function field(id, label, control, help) {
  control.id = `set-${id}`;
  const hint = help && h("p", { class: "help", id: `help-${id}` }, help);
  if (hint) control.setAttribute("aria-describedby", hint.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, hint);
}

function checkbox(id, label, checked, change) {
  const box = h("input", { type: "checkbox", id: `set-${id}`, checked });
  box.addEventListener("change", () => change(box.checked));
  return h("label", { class: "check" }, box, label);
}

function systemField(record, changed) {
  const control = h("textarea", { rows: 3, value: record.system, placeholder: "You are a helpful assistant." });
  control.addEventListener("input", () => {
    record.system = control.value;
    changed();
  });
  return field("system", "System prompt", control, "What the model is told before the first message.");
}

function overflowField(options, changed) {
  const control = h(
    "select",
    {},
    h("option", { value: "", selected: !options.leaveOut }, "Ask what to do"),
    h("option", { value: "yes", selected: Boolean(options.leaveOut) }, "Leave out the oldest turns"),
  );
  control.addEventListener("change", () => set(options, "leaveOut", control.value ? true : undefined, changed));
  const help = "The server can also be started with a larger context, if there is memory for it (n_ctx).";
  return field("leaveOut", "When the context is full", control, help);
}

function parameterField({ name, label, min, max, step, help }, options, defaults, changed) {
  const range = { min, max, step: "any", inputMode: step % 1 ? "decimal" : "numeric" };
  const placeholder = defaultOf(name, defaults[name]);
  const control = h("input", { type: "number", value: options[name] ?? "", placeholder, ...range });
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  control.addEventListener("input", () => {
    const value = control.value === "" ? undefined : Number(control.value);
    const problem = problemOf(control, step, min, max);
    wrong.hidden = !problem;
    wrong.textContent = problem;
    control.setAttribute("aria-invalid", String(Boolean(problem)));
    if (!problem) set(options, name, value, changed);
  });
  const box = field(name, label, control, help);
  box.append(wrong);
  return box;
}

function problemOf(control, step, min, max) {
  const { value, validity } = control;
  if (validity.badInput) return "This is not a number.";
  if (value === "") return "";
  if (step % 1 === 0 && !Number.isInteger(Number(value))) return "This has to be a whole number.";
  if (validity.rangeUnderflow) return `At least ${min}.`;
  return validity.rangeOverflow ? `At most ${max}.` : "";
}

/** What the server does where nothing is set. */
function defaultOf(name, value) {
  // The temperature that it tells is that of plain completions; chats have another one.
  if (typeof value !== "number" || name === "temperature") return "default";
  if (name === "seed") return "random";
  if (name === "max_tokens") return "no limit";
  return String(Math.round(value * 1000) / 1000);
}

function stopField(options, changed) {
  const control = h("textarea", { rows: 1, value: (options.stop ?? []).join("\n"), spellcheck: false });
  control.addEventListener("input", () => {
    const texts = control.value.split("\n").filter(Boolean);
    set(options, "stop", texts.length ? texts : undefined, changed);
  });
  return field("stop", "Stop texts", control, "One a line: where one would come, the reply ends.");
}

function thinkingField(options, changed) {
  const choices = [["", "As the model does"], ["yes", "Yes"], ["no", "No"]];
  const now = options.thinking === undefined ? "" : options.thinking ? "yes" : "no";
  const control = h("select", {}, choices.map(([value, label]) => h("option", { value, selected: value === now }, label)));
  control.addEventListener("change", () => {
    set(options, "thinking", control.value ? control.value === "yes" : undefined, changed);
  });
  return field("thinking", "Reason before the answer", control, "For models that can.");
}

function jsonField({ id, label, help, read, write, check }) {
  const value = read();
  const text = value === undefined ? "" : JSON.stringify(value, null, 2);
  const control = h("textarea", { rows: text ? 8 : 2, value: text, class: "mono", spellcheck: false });
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  control.addEventListener("input", () => {
    const [parsed, problem] = parseField(control.value, check);
    wrong.hidden = !problem;
    wrong.textContent = problem;
    control.setAttribute("aria-invalid", String(Boolean(problem)));
    if (!problem) write(parsed);
  });
  const box = field(id, label, control, help);
  box.append(wrong);
  return box;
}

function parseField(text, check) {
  if (!text.trim()) return [undefined, ""];
  try {
    const value = JSON.parse(text);
    return [value, check(value)];
  } catch (error) {
    return [undefined, `Not JSON yet: ${error.message}.`];
  }
}

// -- the page ---------------------------------------------------------------------------------------

function pageFields(prefs, actions) {
  return [
    themeField(prefs, actions),
    checkbox("userMarkdown", "Show my own messages as markdown", prefs.get("userMarkdown"), (on) => {
      prefs.set("userMarkdown", on);
      actions.changedPage();
    }),
    h(
      "div",
      { class: "buttons" },
      textButton("API key", actions.enterKey),
      textButton("Export everything", actions.exportAll),
      textButton("Import", actions.importAll),
    ),
  ];
}

function themeField(prefs, actions) {
  const now = prefs.get("theme");
  const choice = ([value, label]) => {
    const radio = h("input", { type: "radio", name: "theme", value, checked: value === now });
    radio.addEventListener("change", () => {
      prefs.set("theme", value);
      actions.changedPage();
    });
    return h("label", {}, radio, h("span", {}, label));
  };
  const choices = [["auto", "Like the system"], ["light", "Light"], ["dark", "Dark"]].map(choice);
  return h("fieldset", { class: "field" }, h("legend", {}, "Colours"), h("div", { class: "segments" }, choices));
}

/** What the server has in memory of this conversation, and of all. */
function memoryOf(record, actions) {
  const text = h("p", { class: "help", role: "status" }, "Asking the server …");
  const forget = textButton("Forget this conversation there", async () => {
    await actions.forgetSession(record.id).catch(() => {});
    show();
  });
  const show = async () => {
    const sessions = await actions.sessions().catch(() => null);
    forget.hidden = true;
    if (!sessions) {
      text.textContent = "This server does not say what it has in memory.";
      return;
    }
    const own = sessions.find((each) => each.id === record.id);
    forget.hidden = !own;
    const here = own ? `${tokens(own.tokens_in_memory)} of this conversation` : "Nothing of this conversation";
    text.textContent =
      `${here} in memory, and ${plural(sessions.length, "conversation")} in all. ` +
      "What is in memory need not be processed again.";
  };
  show();
  return h("div", { class: "field" }, text, forget);
}

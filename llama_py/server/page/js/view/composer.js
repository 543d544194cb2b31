// Where a message is written: grows with its text, takes files, says which model answers and how
// much of the context is used.

import { count } from "../words.js";
import { fill, h, icon, iconButton, say } from "./dom.js";
import { openMenu } from "./menu.js";
import { bar, setBar } from "./progress.js";

/** The largest file that is taken, in bytes: the text goes into the context. */
const LARGEST_FILE = 1 << 20;

export class Composer {
  #form = document.getElementById("composer");
  #text = document.getElementById("message");
  #begin = document.getElementById("begin");
  #beginRow = document.getElementById("begin-row");
  #fileList = document.getElementById("files");
  #model = document.getElementById("model");
  #modelName = document.getElementById("model-name");
  #meter = document.getElementById("meter");
  #meterBar = bar({ class: "small", "aria-hidden": "true" });
  #meterText = h("span", {});
  #send;
  #picker;
  #files = [];
  #actions;
  #running = false;

  /** @param {object} actions `send`, `stop`, `editLast`, `chooseModel`, `draft`, `say` */
  constructor(actions) {
    this.#actions = actions;
    this.#send = h("button", { class: "icon-button main", type: "submit" });
    document.getElementById("composer-send").append(this.#send);
    this.#picker = h("input", { type: "file", multiple: true, hidden: true });
    this.#picker.addEventListener("change", () => this.#attach(this.#picker.files));
    const more = iconButton("add", "Add to the message", () => this.#menu(more), {
      "aria-haspopup": "menu",
      "aria-expanded": "false",
    });
    document.getElementById("composer-tools").append(more, this.#picker);
    document.getElementById("begin-close").append(
      iconButton("close", "Let the model begin the reply", () => this.#showBegin(false)),
    );
    this.#meter.append(this.#meterBar, this.#meterText);
    this.#listen();
    this.show({ running: false });
  }

  #listen() {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#text.addEventListener("keydown", (event) => this.#keys(event));
    this.#text.addEventListener("input", () => {
      this.#grow();
      this.#actions.draft(this.#text.value);
    });
    this.#text.addEventListener("paste", (event) => this.#paste(event));
    this.#model.addEventListener("change", () => this.#actions.chooseModel(this.#model.value));
    this.#begin.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#showBegin(false);
    });
    const main = document.getElementById("main");
    main.addEventListener("dragover", (event) => event.preventDefault());
    main.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#attach(event.dataTransfer.files);
    });
  }

  /** @param {{running: boolean}} state whether a reply of this conversation is running */
  show({ running }) {
    this.#running = running;
    const label = running ? "Stop" : "Send";
    this.#send.setAttribute("aria-label", label);
    this.#send.title = running ? "Stop (Esc)" : "Send (Enter)";
    if (this.#send.dataset.does !== label) fill(this.#send, icon(running ? "stop" : "send"));
    this.#send.dataset.does = label;
  }

  /** @param {{id: string}[]} models @param {string} chosen */
  showModels(models, chosen) {
    const several = models.length > 1;
    this.#model.hidden = !several;
    this.#modelName.hidden = several;
    say(this.#modelName, several ? "" : (models[0]?.id ?? ""));
    if (!several) return;
    fill(this.#model, models.map(({ id }) => h("option", { value: id, selected: id === chosen }, id)));
  }

  /** How much of the context a conversation takes; nothing while that is not known. */
  showUse(tokens, limit) {
    // The last token of a reply is not in the context before the next one is asked for.
    const used = Math.min(tokens, limit);
    this.#meter.hidden = !used || !limit;
    if (this.#meter.hidden) return;
    const share = used / limit;
    setBar(this.#meterBar, share, 0);
    this.#meter.dataset.level = share > 0.95 ? "full" : share > 0.8 ? "high" : "low";
    say(this.#meterText, `${count(used)} / ${count(limit)}`);
    this.#meter.title = `${count(used)} of the ${count(limit)} tokens of the context are used`;
  }

  focus() {
    this.#text.focus();
  }

  /** Puts a text into the field. */
  fill(text) {
    this.#text.value = text;
    this.#files = [];
    this.#showFiles();
    this.#showBegin(false, false);
    this.#grow();
  }

  // -- sending ------------------------------------------------------------------------------------

  #submit() {
    if (this.#running) {
      this.#actions.stop();
      return;
    }
    const message = { text: this.#text.value.trim(), files: this.#files, begin: this.#begin.value };
    if (!message.text && !message.files.length) {
      this.focus();
      return;
    }
    this.fill("");
    this.#actions.send(message);
  }

  #keys(event) {
    // While a word is being composed (Chinese, Japanese, Korean), Enter belongs to that.
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      if (!this.#running) this.#submit();
    } else if (event.key === "ArrowUp" && !this.#text.value) {
      event.preventDefault();
      this.#actions.editLast();
    }
  }

  // Browsers that know `field-sizing` need no help.
  #grow() {
    if (CSS.supports("field-sizing", "content")) return;
    this.#text.style.height = "auto";
    this.#text.style.height = `${this.#text.scrollHeight}px`;
  }

  // -- what is added ------------------------------------------------------------------------------

  #menu(button) {
    openMenu(button, [
      { label: "Attach text files", icon: "attach", run: () => this.#picker.click() },
      { label: "Begin the reply", icon: "onward", run: () => this.#showBegin(true) },
    ]);
  }

  #showBegin(shown, focus = true) {
    this.#beginRow.hidden = !shown;
    if (!shown) this.#begin.value = "";
    if (focus) (shown ? this.#begin : this.#text).focus();
  }

  #paste(event) {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    this.#attach(event.clipboardData.files);
  }

  async #attach(files) {
    for (const file of files) {
      try {
        this.#files.push({ name: file.name, text: await readText(file) });
      } catch (error) {
        this.#actions.say(error.message);
      }
    }
    this.#picker.value = "";
    this.#showFiles();
    this.focus();
  }

  #showFiles() {
    this.#fileList.hidden = !this.#files.length;
    fill(this.#fileList, this.#files.map((file, index) => this.#fileChip(file, index)));
  }

  #fileChip({ name, text }, index) {
    const remove = iconButton("close", `Remove ${name}`, () => {
      this.#files = this.#files.filter((_, at) => at !== index);
      this.#showFiles();
      this.focus();
    });
    const size = h("span", { class: "size" }, `${count(Math.ceil(text.length / 1000))} k`);
    return h("li", {}, icon("file"), h("span", {}, name), size, remove);
  }
}

/** The text of a file; an error in words if it is none. */
async function readText(file) {
  if (file.size > LARGEST_FILE) {
    throw new Error(`${file.name} is too large: files may have up to 1 MB of text.`);
  }
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch {
    // said below
  }
  throw new Error(`${file.name} is not a text file, and only texts can be attached.`);
}

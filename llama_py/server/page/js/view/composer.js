// Where a message is written: grows with its text, takes files, says which model answers and how
// much of the context is used.

import { whyNoRecording } from "../media/recorder.js";
import { count } from "../words.js";
import { Attachments, whyNot } from "./attachments.js";
import { fill, h, icon, iconButton, say } from "./dom.js";
import { openMenu } from "./menu.js";
import { bar, setBar } from "./progress.js";
import { RecordingRow } from "./recording.js";

/** What the window for files offers first; elsewhere anything can be chosen. */
const ACCEPT = { picture: "image/*", sound: "audio/*", text: "" };

export class Composer {
  #form = document.getElementById("composer");
  #text = document.getElementById("message");
  #begin = document.getElementById("begin");
  #beginRow = document.getElementById("begin-row");
  #model = document.getElementById("model");
  #modelName = document.getElementById("model-name");
  #meter = document.getElementById("meter");
  #meterBar = bar({ class: "small", "aria-hidden": "true" });
  #meterText = h("span", {});
  #send;
  #picker;
  #attachments;
  #recording;
  #reads = { pictures: false, sounds: false };
  #seeButton;
  #hearButton;
  #actions;
  #running = false;

  /** @param {object} actions `send`, `stop`, `editLast`, `chooseModel`, `draft`, `say`; `library` */
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
    this.#seeButton = iconButton("picture", "Attach pictures", () => this.#choose("picture"));
    this.#hearButton = iconButton("microphone", "Record a sound", () => this.#recording.begin());
    document.getElementById("composer-tools").append(more, this.#seeButton, this.#hearButton, this.#picker);
    this.#attachments = new Attachments({
      library: actions.library,
      say: actions.say,
      removed: () => this.focus(),
    });
    this.#recording = new RecordingRow({
      recorded: (file) => this.#attach([file]),
      ended: () => this.focus(),
      say: actions.say,
    });
    document.getElementById("begin-close").append(
      iconButton("close", "Let the model begin the reply", () => this.#showBegin(false)),
    );
    this.#meter.append(this.#meterBar, this.#meterText);
    this.#listen();
    this.show({ running: false });
    this.showReads(this.#reads);
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
    const over = (is) => this.#form.classList.toggle("taking", is);
    main.addEventListener("dragover", (event) => {
      event.preventDefault();
      over(event.dataTransfer.types.includes("Files"));
    });
    main.addEventListener("dragleave", () => over(false));
    main.addEventListener("drop", (event) => {
      event.preventDefault();
      over(false);
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

  /** @param {{pictures: boolean, sounds: boolean}} reads what the chosen model reads */
  showReads(reads) {
    this.#reads = reads;
    this.#attachments.reads = reads;
    this.#seeButton.hidden = !reads.pictures;
    this.#hearButton.hidden = !reads.sounds || Boolean(whyNoRecording());
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
    this.#attachments.clear();
    this.#showBegin(false, false);
    this.#grow();
  }

  // -- sending ------------------------------------------------------------------------------------

  #submit() {
    if (this.#running) {
      this.#actions.stop();
      return;
    }
    const { pending, problem, content } = this.#attachments;
    if (pending) {
      this.#sendAfter(pending);
      return;
    }
    const message = { text: this.#text.value.trim(), ...content, begin: this.#begin.value };
    const empty = !message.text && !content.files.length && !content.media.length;
    if (problem) this.#actions.say(`${problem} Take away what it cannot read, or choose another model.`);
    if (problem || empty) {
      this.focus();
      return;
    }
    this.fill("");
    this.#actions.send(message);
  }

  // Not if a file could not be read, or something else was written meanwhile.
  async #sendAfter(reading) {
    const text = this.#text.value;
    const good = await reading;
    if (good && this.#text.value === text && !this.#attachments.pending) this.#submit();
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
    const { sounds } = this.#reads;
    openMenu(button, [
      { label: "Attach text files", icon: "attach", run: () => this.#choose("text") },
      this.#offer("picture", "Attach pictures"),
      this.#offer("sound", "Attach sounds"),
      sounds && {
        label: "Record a sound",
        icon: "microphone",
        whyNot: whyNoRecording(),
        run: () => this.#recording.begin(),
      },
      { label: "Begin the reply", icon: "onward", run: () => this.#showBegin(true) },
    ]);
  }

  #offer(kind, label) {
    return { label, icon: kind, whyNot: whyNot(kind, this.#reads), run: () => this.#choose(kind) };
  }

  #choose(kind) {
    this.#picker.accept = ACCEPT[kind];
    this.#picker.click();
  }

  #showBegin(shown, focus = true) {
    this.#beginRow.hidden = !shown;
    if (!shown) this.#begin.value = "";
    if (focus) (shown ? this.#begin : this.#text).focus();
  }

  // Office programs add a picture of the text that was copied; it is the text that is meant.
  #paste(event) {
    const files = [...event.clipboardData.files];
    const text = event.clipboardData.getData("text/plain").trim();
    if (!files.length || (text && files.every(({ name }) => name !== text))) return;
    event.preventDefault();
    this.#attach(files);
  }

  #attach(files) {
    this.#attachments.add(files);
    this.#picker.value = ""; // the same file can be chosen again
    this.focus();
  }
}

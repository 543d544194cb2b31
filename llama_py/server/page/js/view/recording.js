// The row that is there while something is recorded.

import { record } from "../media/recorder.js";
import { clock } from "../words.js";
import { h, iconButton, say, textButton } from "./dom.js";

/** Seconds after which it ends by itself. */
const LONGEST = 300;

export class RecordingRow {
  #row = document.getElementById("recording");
  #time = h("span", { class: "time", role: "timer" });
  #use = textButton("Attach the recording", () => this.#end(true), { class: "button small main" });
  #actions;
  #recording = null;
  #began = 0;
  #ticking = 0;

  /** @param {object} actions `recorded` (with a file), `ended`, `say` */
  constructor(actions) {
    this.#actions = actions;
    const discard = iconButton("close", "Discard the recording", () => this.#end(false));
    this.#row.append(h("span", { class: "dot" }), h("span", {}, "Recording"), this.#time, this.#use, discard);
    this.#row.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.#end(false);
    });
  }

  /** Begins to record, if nothing is being recorded. */
  async begin() {
    if (!this.#row.hidden) return this.#use.focus();
    try {
      this.#recording = await record();
    } catch (error) {
      return this.#actions.say(error.message);
    }
    this.#began = performance.now();
    this.#row.hidden = false;
    this.#tick();
    this.#ticking = setInterval(() => this.#tick(), 250);
    return this.#use.focus();
  }

  #tick() {
    const seconds = (performance.now() - this.#began) / 1000;
    say(this.#time, clock(Math.floor(seconds)));
    if (seconds >= LONGEST) this.#end(true);
  }

  async #end(use) {
    clearInterval(this.#ticking);
    if (this.#row.hidden) return;
    this.#row.hidden = true;
    this.#actions.ended();
    const blob = await this.#recording.stop();
    const time = new Intl.DateTimeFormat("en", { timeStyle: "short", hourCycle: "h23" }).format();
    if (use) this.#actions.recorded(new File([blob], `Recording ${time}`, { type: blob.type }));
  }
}

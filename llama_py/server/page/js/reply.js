// One reply while it comes: from the request to the last token, or to what went wrong. It writes
// into the message, so whatever has come is kept, whatever happens.

import { ApiError } from "./api.js";

/** Times that a busy server is asked again without being told to. */
const PATIENCE = 5;

export class Reply {
  #api;
  #body;
  #media;
  #changed;
  #abort = new AbortController();
  #wake = null;
  #began;
  #thoughtFrom = 0;
  #answers = false;
  #ticking;

  /**
   * What is happening: "sending", "waiting" (the server has not begun), "busy" (it will be asked
   * again), "prompt" (it reads the prompt), "thinking", "writing", "ended".
   */
  phase = "sending";
  /** While the prompt is read: `{total, cache, processed, time_ms}`. */
  progress = null;
  /** While the server is busy: when it will be asked again, in `Date.now()`'s milliseconds. */
  nextTry = 0;

  /**
   * @param {object} parts
   * @param {import("./api.js").Api} parts.api
   * @param {() => Promise<object>} parts.body of the request
   * @param {{pictures: number, sounds: number}} parts.media in it
   * @param {import("./conversation.js").Message} parts.message where the reply goes; if it has
   *   content, the reply goes on from there
   * @param {() => void} parts.changed called when there is something new to show
   */
  constructor({ api, body, media, message, changed }) {
    this.#api = api;
    this.#body = body;
    this.#media = media;
    this.#changed = changed;
    this.message = message;
  }

  /** Runs to the end; what goes wrong is in `message.status` and `message.error`. */
  async run() {
    const { message } = this;
    message.status = "running";
    delete message.error;
    delete message.finish;
    this.#began = performance.now();
    // Until something comes, what is shown says how long that takes.
    this.#ticking = setInterval(this.#changed, 1000);
    try {
      await this.#patiently();
      message.status = "done";
    } catch (error) {
      this.#failed(error);
    }
    clearInterval(this.#ticking);
    this.#endThought();
    this.#enter("ended");
  }

  /** Milliseconds since the request was sent. */
  get waited() {
    return performance.now() - this.#began;
  }

  /** Ends the reply and keeps what has come. */
  stop() {
    this.#abort.abort();
    this.#wake?.();
  }

  /** Asks a busy server now and not later. */
  tryNow() {
    this.#wake?.();
  }

  // -- the request --------------------------------------------------------------------------------

  async #patiently() {
    for (let tries = 1; ; tries += 1) {
      try {
        return await this.#receive();
      } catch (error) {
        const again = error.kind === "busy" && !this.#answers && tries < PATIENCE;
        if (!again || this.#abort.signal.aborted) throw error;
        await this.#waitFor(error.retryAfter ?? 2 ** tries);
      }
    }
  }

  async #waitFor(seconds) {
    this.nextTry = Date.now() + seconds * 1000;
    this.#enter("busy");
    await new Promise((resolve) => {
      this.#wake = resolve;
      setTimeout(resolve, seconds * 1000);
    });
    this.#wake = null;
    this.#enter("sending");
  }

  async #receive() {
    const body = await this.#body();
    for await (const chunk of this.#api.chat(body, this.#abort.signal)) {
      this.#answers = true;
      if (chunk.prompt_progress) this.#read(chunk.prompt_progress);
      else if (this.phase === "sending" || this.phase === "busy") this.#enter("waiting");
      if (chunk.model) this.message.model = chunk.model;
      if (chunk.usage) this.#count(chunk.usage);
      if (chunk.timings) this.#time(chunk.timings);
      for (const choice of chunk.choices ?? []) this.#take(choice);
      this.#changed();
    }
  }

  #failed(error) {
    const { message } = this;
    if (this.#abort.signal.aborted) {
      message.status = "stopped";
      return;
    }
    if (!(error instanceof ApiError)) throw error;
    message.status = "failed";
    message.error = { ...error, message: error.message };
  }

  // -- what comes ---------------------------------------------------------------------------------

  #read(progress) {
    this.progress = progress;
    this.#noteReuse(progress.total, progress.cache);
    this.#enter("prompt");
  }

  #take({ delta = {}, logprobs, finish_reason: finish }) {
    const { message } = this;
    if (delta.reasoning_content) this.#think(delta.reasoning_content);
    if (delta.content) {
      this.#write();
      message.content += delta.content;
    }
    for (const call of delta.tool_calls ?? []) this.#call(call);
    if (logprobs?.content?.length) (message.logprobs ??= []).push(...logprobs.content);
    if (finish) message.finish = finish;
  }

  #think(text) {
    if (this.phase !== "thinking") {
      this.#thoughtFrom = performance.now();
      this.#firstToken();
      this.#enter("thinking");
    }
    this.message.reasoning = (this.message.reasoning ?? "") + text;
  }

  #endThought() {
    if (!this.#thoughtFrom) return;
    const thought = (this.message.speed.thought ?? 0) + performance.now() - this.#thoughtFrom;
    this.message.speed = { ...this.message.speed, thought };
    this.#thoughtFrom = 0;
  }

  #write() {
    if (this.phase === "writing") return;
    this.#endThought();
    this.#firstToken();
    this.#enter("writing");
  }

  #firstToken() {
    const first = this.message.speed?.first ?? performance.now() - this.#began;
    this.message.speed = { ...this.message.speed, first };
  }

  #call({ index, id, function: called = {} }) {
    this.#write();
    const calls = (this.message.calls ??= []);
    const call = (calls[index] ??= { id: "", name: "", arguments: "" });
    if (id) call.id = id;
    if (called.name) call.name = called.name;
    call.arguments += called.arguments ?? "";
  }

  #count(usage) {
    const reused = usage.prompt_tokens_details?.cached_tokens ?? 0;
    this.#noteReuse(usage.prompt_tokens, reused);
    this.message.usage.reply = usage.completion_tokens;
  }

  #noteReuse(prompt, reused) {
    this.message.usage = { reply: 0, ...this.message.usage, ...this.#media, prompt, reused };
  }

  #time(timings) {
    this.message.speed = { ...this.message.speed, rate: timings.predicted_per_second };
  }

  #enter(phase) {
    if (phase === "thinking" || phase === "writing") clearInterval(this.#ticking);
    this.phase = phase;
    this.#changed();
  }
}

// What is known of the server: its models, the context of the chosen one, and whether it answers.

/** Milliseconds between two tries to reach a server that went away. */
const TRY_AGAIN = 2000;

export class ServerState {
  #api;
  #changed;
  #wantsKey;
  #timer = 0;
  #wanted = "";
  #props = {};

  models = [];
  model = "";
  /** A server that is not there, or not ready, in words; "" if all is well. */
  words = "";

  /**
   * @param {import("./api.js").Api} api
   * @param {{changed: () => void, wantsKey: () => void}} events
   */
  constructor(api, { changed, wantsKey }) {
    this.#api = api;
    this.#changed = changed;
    this.#wantsKey = wantsKey;
  }

  /** Tokens that the context of the model holds, or undefined if the server does not say. */
  get limit() {
    const meta = this.models.find(({ id }) => id === this.model)?.meta;
    return this.#props.default_generation_settings?.n_ctx ?? meta?.n_ctx;
  }

  /** Whether the model sees and hears; the list of models tells it of those that are not loaded. */
  get reads() {
    const model = this.models.find(({ id }) => id === this.model);
    const listed = model?.architecture?.input_modalities ?? [];
    const { vision, audio } = this.#props.modalities ?? {};
    return {
      pictures: Boolean(vision || listed.includes("image")),
      sounds: Boolean(audio || listed.includes("audio")),
    };
  }

  /** A sentence about a GPU that the server does not use, or "". */
  get hint() {
    return this.#props.device_hint ?? "";
  }

  /** The server's defaults of the parameters. */
  get defaults() {
    return this.#props.default_generation_settings?.params ?? {};
  }

  /** Whether the model can answer at once. */
  get isLoaded() {
    const status = this.models.find(({ id }) => id === this.model)?.status?.value;
    return status === undefined || status === "loaded";
  }

  /** A model has answered: what is only known of one that is loaded can be asked now. */
  noteReply() {
    if (!this.isLoaded || !this.limit) this.connect(this.model);
  }

  /** Asks what there is. @param {string} wanted the model that was chosen before */
  async connect(wanted) {
    this.#wanted = wanted;
    clearTimeout(this.#timer);
    try {
      this.models = await this.#api.models();
      const known = this.models.some(({ id }) => id === wanted);
      await this.choose(known ? wanted : (this.models[0]?.id ?? ""));
      this.#say("");
    } catch (error) {
      this.#failed(error);
    }
  }

  /** Answers come from this model from now on. */
  async choose(id) {
    this.model = id;
    // Servers need not tell; then there is no meter.
    this.#props = await this.#api.props(id).catch(() => ({}));
    this.#changed();
  }

  /** A request got no answer: say so, and find out when the server is back. */
  lost() {
    this.#say("The server does not answer. This page tries again by itself.");
    this.#later();
  }

  #failed({ kind }) {
    if (kind === "key") {
      this.#say("The server asks for a key.");
      this.#wantsKey();
    } else if (kind === "busy") {
      this.#say("The server is starting. This page goes on by itself.");
      this.#later();
    } else this.lost();
  }

  #later() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      if (await this.#api.ready()) await this.connect(this.#wanted);
      else this.#later();
    }, TRY_AGAIN);
  }

  #say(words) {
    this.words = words;
    this.#changed();
  }
}

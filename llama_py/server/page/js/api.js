// The server's public API, as the page uses it: everything that the page can do, another program can
// do as well. Nothing here knows about the page.

import { readEvents } from "./sse.js";

/** Milliseconds without a sign of life after which a stream counts as broken; the server's own
 * sign of life comes at least every ten seconds. */
const SILENCE = 60_000;

/**
 * What went wrong with a request.
 *
 * `kind` is one of: "unreachable" (no answer), "broken" (the reply ended early), "key" (401),
 * "forbidden" (403), "overflow" (the conversation does not fit), "too-large" (the request does not
 * fit), "busy" (429, 503), "timeout" (504), "refused" (another 4xx), "server" (another 5xx).
 */
export class ApiError extends Error {
  /**
   * @param {string} kind
   * @param {string} message what the server said
   * @param {{status?: number, retryAfter?: number, param?: string, tokens?: number,
   *   isBound?: boolean, limit?: number}} [details] `retryAfter` in seconds; `tokens` and `limit` of
   *   an overflow, and whether `tokens` is only a lower bound
   */
  constructor(kind, message, details = {}) {
    super(message);
    this.name = "ApiError";
    this.kind = kind;
    Object.assign(this, details);
  }
}

/** A client of one server. */
export class Api {
  #base;
  #key;

  /**
   * @param {URL} base address that the paths are relative to, with a slash at its end
   * @param {() => string} key the API key, or ""
   */
  constructor(base, key = () => "") {
    this.#base = base;
    this.#key = key;
  }

  /** Models that the server offers: `[{id, meta, status, …}]`. */
  async models() {
    return (await this.#get("v1/models")).data ?? [];
  }

  /** What the server says about a model: context length, defaults of the parameters. */
  props(model) {
    return this.#get(model ? `props?model=${encodeURIComponent(model)}` : "props");
  }

  /** Conversations that the server has in memory. */
  async sessions() {
    return (await this.#get("v1/sessions")).data ?? [];
  }

  /** Lets the server forget what it has in memory for a conversation. */
  async forgetSession(id) {
    await this.#request(`v1/sessions/${encodeURIComponent(id)}`, { method: "DELETE" });
  }

  /** Whether the server is there and ready. */
  async ready() {
    try {
      return (await fetch(this.#url("health"), { cache: "no-store" })).ok;
    } catch {
      return false;
    }
  }

  /** How many tokens the prompt of a chat would have. */
  async countTokens(body, signal) {
    const response = await this.#post("v1/chat/completions/input_tokens", body, signal);
    return (await response.json()).input_tokens;
  }

  /**
   * The chunks of a chat completion, as they come. Aborting the signal ends the request, and the
   * server stops computing.
   *
   * @param {object} body of `POST /v1/chat/completions`; it must ask for a stream
   * @param {AbortSignal} signal
   * @returns {AsyncGenerator<object>}
   * @throws {ApiError} also when the stream ends before the reply does
   */
  async *chat(body, signal) {
    const watch = new Watch(signal);
    try {
      const response = await this.#post("v1/chat/completions", body, watch.signal);
      watch.alive();
      for await (const data of readEvents(response.body, () => watch.alive())) {
        if (data === "[DONE]") return;
        const chunk = parsed(data);
        if (chunk.error) throw errorOf(chunk.error.status ?? 0, chunk.error);
        yield chunk;
      }
      throw new ApiError("broken", "the reply ended without its end");
    } catch (error) {
      if (error instanceof ApiError || signal.aborted) throw error;
      throw new ApiError("broken", watch.silent ? "nothing came any more" : error.message);
    } finally {
      watch.end();
    }
  }

  // -- requests -----------------------------------------------------------------------------------

  #url(path) {
    return new URL(path, this.#base);
  }

  async #get(path) {
    return (await this.#request(path, {})).json();
  }

  #post(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    return this.#request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  }

  async #request(path, options) {
    const headers = new Headers(options.headers);
    if (this.#key()) headers.set("Authorization", `Bearer ${this.#key()}`);
    let response;
    try {
      response = await fetch(this.#url(path), { cache: "no-store", ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("unreachable", error.message);
    }
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    throw errorOf(response.status, body.error ?? {}, response.headers);
  }
}

/** Aborts a request when nothing has come for too long, or when somebody else's signal does. */
class Watch {
  #controller = new AbortController();
  #timer;
  #outer;
  #stop = () => this.#controller.abort();
  silent = false;

  constructor(outer) {
    this.#outer = outer;
    outer.addEventListener("abort", this.#stop);
    if (outer.aborted) this.#stop();
  }

  get signal() {
    return this.#controller.signal;
  }

  alive() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.silent = true;
      this.#stop();
    }, SILENCE);
  }

  end() {
    clearTimeout(this.#timer);
    this.#outer.removeEventListener("abort", this.#stop);
    this.#stop();
  }
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("broken", "the server sent something that is not JSON");
  }
}

const KINDS = { 401: "key", 403: "forbidden", 408: "timeout", 413: "too-large", 429: "busy" };
const LATER_KINDS = { 503: "busy", 504: "timeout", 529: "busy" };
// An error in the middle of a stream has no status: its code says what it is.
const CODES = {
  context_length_exceeded: "overflow",
  invalid_api_key: "key",
  rate_limit_exceeded: "busy",
  request_too_large: "too-large",
  server_is_overloaded: "busy",
  timeout: "timeout",
  unavailable: "busy",
};

function errorOf(status, error, headers = new Headers()) {
  const message = error.message ?? `the server answered with status ${status}`;
  const general = status >= 400 && status < 500 ? "refused" : "server";
  const kind = CODES[error.code] ?? KINDS[status] ?? LATER_KINDS[status] ?? general;
  return new ApiError(kind, message, {
    status,
    param: error.param ?? undefined,
    retryAfter: Number.parseFloat(headers.get("Retry-After")) || undefined,
    tokens: error.n_prompt_tokens,
    isBound: error.at_least === true,
    limit: error.n_ctx,
  });
}

// Server-sent events from the body of a response. `EventSource` can only GET; a chat is a POST.

/**
 * The `data` of each event, in the order in which they come.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {() => void} [alive] called whenever anything arrives, comments included
 * @returns {AsyncGenerator<string>}
 */
export async function* readEvents(body, alive = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const lines = new Lines();
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return; // an event without the empty line at its end never came as a whole
      alive();
      for (const line of lines.add(value)) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** Whole lines of a text that comes in pieces; a line ends with LF, CR or CRLF. */
class Lines {
  #rest = "";

  add(text) {
    const all = this.#rest + text;
    // A CR at the end may be the first half of CRLF.
    const end = all.endsWith("\r") ? all.length - 1 : all.length;
    const lines = all.slice(0, end).split(/\r\n|\n|\r/);
    this.#rest = lines.pop() + all.slice(end);
    return lines;
  }
}

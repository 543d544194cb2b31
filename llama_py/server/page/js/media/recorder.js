// The microphone.

/** Why nothing can be recorded here, as a sentence; "" if it can be tried. */
export function whyNoRecording() {
  if (!navigator.mediaDevices) return "Recording needs https, or this machine's own address.";
  const allows = document.featurePolicy?.allowsFeature("microphone") ?? true;
  return allows ? "" : "This server's page may not use the microphone.";
}

const REFUSALS = {
  NotAllowedError: "The browser did not allow the microphone.",
  NotFoundError: "There is no microphone.",
};

/** Begins to record. @throws {Error} whose message says why not */
export async function record() {
  try {
    return new Recording(await navigator.mediaDevices.getUserMedia({ audio: true }));
  } catch (error) {
    throw new Error(REFUSALS[error.name] ?? `The microphone cannot be used: ${error.message}`);
  }
}

class Recording {
  #stream;
  #recorder;
  #pieces = [];

  constructor(stream) {
    this.#stream = stream;
    this.#recorder = new MediaRecorder(stream);
    this.#recorder.addEventListener("dataavailable", ({ data }) => this.#pieces.push(data));
    this.#recorder.start();
  }

  /** Ends it; what was recorded, in a format of the browser's. */
  async stop() {
    const stopped = new Promise((resolve) => this.#recorder.addEventListener("stop", resolve));
    if (this.#recorder.state !== "inactive") {
      this.#recorder.stop();
      await stopped;
    }
    for (const track of this.#stream.getTracks()) track.stop();
    return new Blob(this.#pieces, { type: this.#recorder.mimeType });
  }
}

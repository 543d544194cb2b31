// Sounds as they are sent: WAV of one channel with 16,000 samples a second, which is what models
// hear, whatever the file was.

const RATE = 16_000;
/** Bytes of the largest file that is read, and seconds of the longest sound. */
const LARGEST_FILE = 128 << 20;
const LONGEST = 300;

/**
 * @param {File|Blob} file in whatever format the browser can play
 * @param {string} name for what went wrong
 * @returns {Promise<{blob: Blob, seconds: number}>}
 */
export async function readSound(file, name) {
  if (file.size > LARGEST_FILE) throw new Error(`${name} is too large: sounds may have up to 128 MB.`);
  const sound = await decoded(file, name);
  if (sound.duration > LONGEST) throw new Error(`${name} is too long: sounds may last up to five minutes.`);
  return { blob: wav(mono(sound)), seconds: sound.duration };
}

// What decodes it also brings it to the rate.
async function decoded(file, name) {
  try {
    return await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error(`${name} is not a sound that this browser can play.`);
  }
}

function mono(sound) {
  const channels = Array.from({ length: sound.numberOfChannels }, (_, at) => sound.getChannelData(at));
  if (channels.length === 1) return channels[0];
  const sum = (at) => channels.reduce((all, channel) => all + channel[at], 0);
  return Float32Array.from({ length: sound.length }, (_, at) => sum(at) / channels.length);
}

function wav(samples) {
  const bytes = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const word = (at, text) => [...text].forEach((char, i) => bytes.setUint8(at + i, char.charCodeAt(0)));
  word(0, "RIFF");
  bytes.setUint32(4, 36 + 2 * samples.length, true);
  word(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true);
  bytes.setUint16(20, 1, true); // plain samples
  bytes.setUint16(22, 1, true); // one channel
  bytes.setUint32(24, RATE, true);
  bytes.setUint32(28, 2 * RATE, true);
  bytes.setUint16(32, 2, true);
  bytes.setUint16(34, 16, true);
  word(36, "data");
  bytes.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, at) => {
    const level = Math.round(sample * (sample < 0 ? 32768 : 32767));
    bytes.setInt16(44 + 2 * at, Math.max(-32768, Math.min(32767, level)), true);
  });
  return new Blob([bytes], { type: "audio/wav" });
}

/** Plays a sound; the policy of the page allows no other sources. */
export class Player {
  #context = null;
  #ended = null;

  /** @param {Blob} blob @param {() => void} ended called when it has ended or was stopped */
  async play(blob, ended) {
    const context = new AudioContext();
    this.#context = context;
    this.#ended = ended;
    const sound = await context.decodeAudioData(await blob.arrayBuffer());
    if (this.#context !== context) return;
    const source = new AudioBufferSourceNode(context, { buffer: sound });
    source.connect(context.destination);
    source.addEventListener("ended", () => this.#context === context && this.stop());
    source.start();
  }

  stop() {
    if (!this.#context) return;
    this.#context.close();
    this.#context = null;
    this.#ended();
  }
}

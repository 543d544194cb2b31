// Pictures and sounds by their digests: kept in the browser's database once, however many messages
// and branches have them, and in memory until the first message that has them is written.

import { ApiError } from "../api.js";
import { sha256 } from "./sha256.js";

/**
 * @typedef {object} Media what a message says of a picture or a sound that it has
 * @property {string} digest
 * @property {"picture"|"sound"} kind
 * @property {string} name
 * @property {number} size in bytes
 * @property {number} [width] of a picture
 * @property {number} [height]
 * @property {{width: number, height: number}} [from] its size before it was made smaller
 * @property {number} [seconds] of a sound
 */

/** What is sent and kept: the page makes these of everything else. */
const TYPES = ["image/png", "image/jpeg", "audio/wav"];

/** The fields of a message with pictures and sounds; the database finds it by their digests. */
export function mediaFields(media = []) {
  return media.length ? { media, digests: [...new Set(media.map(({ digest }) => digest))] } : {};
}

/** How many pictures and sounds messages have. */
export function countMedia(messages) {
  const kinds = messages.flatMap(({ media = [] }) => media.map(({ kind }) => kind));
  const pictures = kinds.filter((kind) => kind === "picture").length;
  return { pictures, sounds: kinds.length - pictures };
}

export class Library {
  #store;
  #unsaved = new Map();
  #urls = new Map();

  /** @param {() => object} store that keeps what messages have */
  constructor(store) {
    this.#store = store;
  }

  /** Takes a picture or a sound; its digest. */
  async add(blob) {
    const digest = sha256(new Uint8Array(await blob.arrayBuffer()));
    this.#unsaved.set(digest, blob);
    return digest;
  }

  /** What messages have and the database may not: to be written with them. */
  unsavedOf(messages) {
    const digests = digestsOf(messages).filter((digest) => this.#unsaved.has(digest));
    return digests.map((digest) => ({ digest, blob: this.#unsaved.get(digest) }));
  }

  /** What was written need not be kept in memory. */
  saved(media) {
    for (const { digest } of media) this.#unsaved.delete(digest);
  }

  /** Keeps in memory what messages have that are about to be deleted, as they may come back. */
  async hold(messages) {
    for (const digest of digestsOf(messages)) {
      const blob = await this.blob(digest);
      if (blob) this.#unsaved.set(digest, blob);
    }
  }

  /** @returns {Promise<Blob|undefined>} */
  async blob(digest) {
    return this.#unsaved.get(digest) ?? (await this.#store().media(digest));
  }

  /** An address for an element of this page, or undefined where there is nothing. */
  url(digest) {
    if (!this.#urls.has(digest)) this.#urls.set(digest, this.#newUrl(digest));
    return this.#urls.get(digest);
  }

  async #newUrl(digest) {
    const blob = await this.blob(digest);
    if (!blob) this.#urls.delete(digest); // it may be imported later
    return blob && URL.createObjectURL(blob);
  }

  /** Addresses that contain what messages have, by digest: for requests. */
  async dataUrls(messages) {
    const urls = new Map();
    for (const { digest, kind, name } of messages.flatMap(({ media = [] }) => media)) {
      const blob = await this.blob(digest);
      if (!blob) throw new ApiError("missing", `The ${kind} ${name} is not in this browser any more.`);
      if (!urls.has(digest)) urls.set(digest, await dataUrl(blob));
    }
    return urls;
  }
}

function digestsOf(messages) {
  return [...new Set(messages.flatMap(({ digests = [] }) => digests))];
}

/** An address that contains the bytes. */
export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** What such an address contains; null if it is none, or of a type that the page does not keep. */
export function fromDataUrl(url) {
  const [, type, text] = /^data:([\w/]+);base64,(.*)$/.exec(url) ?? [];
  if (!TYPES.includes(type)) return null;
  try {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    return { bytes, blob: new Blob([bytes], { type }) };
  } catch {
    return null;
  }
}

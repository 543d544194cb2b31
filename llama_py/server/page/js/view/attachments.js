// What is attached to the message that is being written: texts, and pictures and sounds where the
// model reads them.

import { readPicture } from "../media/picture.js";
import { readSound } from "../media/sound.js";
import { count } from "../words.js";
import { fill, h, icon, iconButton } from "./dom.js";
import { aboutMedia, picture, sound } from "./media.js";

/** The largest text that is taken, in bytes: it goes into the context. */
const LARGEST_TEXT = 1 << 20;

/** What the system does not say of every file. */
const PICTURE = /\.(?:png|jpe?g|gif|bmp|webp|avif|hei[cf]|tiff?|svg)$/i;
const SOUND = /\.(?:wav|mp3|m4a|aac|flac|ogg|opus|weba)$/i;

/** Why a model cannot be given something; "" if it can. */
export function whyNot(kind, reads) {
  if (kind === "picture" && !reads.pictures) return "This model sees no pictures.";
  return kind === "sound" && !reads.sounds ? "This model hears no sounds." : "";
}

export class Attachments {
  #list = document.getElementById("files");
  #library;
  #say;
  #removed;
  #reads = { pictures: false, sounds: false };
  #files = [];
  #chips = new WeakMap();
  #reading = null;

  /**
   * @param {object} parts `library`; `say`, which tells what went wrong; `removed`, called when
   *   something was taken away
   */
  constructor({ library, say, removed }) {
    this.#library = library;
    this.#say = say;
    this.#removed = removed;
  }

  /** @param {{pictures: boolean, sounds: boolean}} reads what the model that answers reads */
  set reads(reads) {
    this.#reads = reads;
    this.#show();
  }

  /** While files are read: resolves when they are, to whether all could be. */
  get pending() {
    return this.#files.some((file) => file.pending) ? this.#reading : null;
  }

  /** `files` and `media` of a message. */
  get content() {
    return {
      files: this.#files.filter((file) => !file.kind),
      media: this.#files.filter((file) => file.kind),
    };
  }

  /** Why the model cannot be given what is attached; "" if it can. */
  get problem() {
    return this.#files.map(({ kind }) => whyNot(kind, this.#reads)).find(Boolean) ?? "";
  }

  clear() {
    this.#files = [];
    this.#show();
  }

  /** Adds files, which are read one after the other. */
  add(files) {
    const before = this.pending ?? Promise.resolve(true);
    const places = Array.from(files, (file) => ({ file, name: file.name, pending: true }));
    this.#files.push(...places);
    this.#show();
    this.#reading = before.then(async (all) => {
      let good = all;
      for (const place of places) good = (await this.#read(place)) && good;
      return good;
    });
  }

  async #read(place) {
    if (!this.#files.includes(place)) return true;
    let read = [];
    try {
      read = [await this.#contentOf(place.file)];
    } catch (error) {
      this.#say(error.message);
    }
    const at = this.#files.indexOf(place);
    if (at < 0) return true;
    const focused = this.#chip(place).contains(document.activeElement);
    this.#files.splice(at, 1, ...read);
    this.#show();
    // Another chip stands there now, or none: the focus must not go with the old one.
    if (focused) this.#keepFocus(read[0]);
    return read.length > 0;
  }

  #keepFocus(file) {
    if (file) this.#chip(file).querySelector("button:last-child").focus();
    else this.#removed();
  }

  async #contentOf(file) {
    const { name } = file;
    const kind = kindOf(file, this.#reads);
    const why = whyNot(kind, this.#reads);
    if (why) throw new Error(`${name} was not attached. ${why}`);
    if (!kind) return { name, text: await readText(file) };
    const { blob, ...about } = await (kind === "picture" ? readPicture : readSound)(file, name);
    return { digest: await this.#library.add(blob), kind, name, size: blob.size, ...about };
  }

  #show() {
    this.#list.hidden = !this.#files.length;
    fill(this.#list, this.#files.map((file) => this.#chip(file)));
  }

  // Made once, so that a picture does not flicker when another one comes.
  #chip(file) {
    if (!this.#chips.has(file)) this.#chips.set(file, this.#makeChip(file));
    const chip = this.#chips.get(file);
    chip.classList.toggle("unread", Boolean(whyNot(file.kind, this.#reads)));
    return chip;
  }

  #makeChip(file) {
    const remove = iconButton("close", `Remove ${file.name}`, () => {
      this.#files = this.#files.filter((each) => each !== file);
      this.#show();
      this.#removed();
    });
    return h("li", {}, this.#partsOf(file), remove);
  }

  #partsOf(file) {
    const { name, text, kind, pending } = file;
    const words = (size) => h("span", { class: "words" }, h("span", {}, name), h("span", { class: "size" }, size));
    if (pending) return [icon("file"), words("is read …")];
    if (kind === "picture") return [picture(file, this.#library), words(aboutMedia(file))];
    if (kind === "sound") return [sound(file, this.#library)];
    const size = h("span", { class: "size" }, `${count(Math.ceil(text.length / 1000))} k`);
    return [icon("file"), h("span", {}, name), size];
  }
}

/** "picture", "sound", or undefined for what is to be a text. */
function kindOf({ type, name }, reads) {
  // A drawing in SVG is a text as well, for those who see none.
  if (type === "image/svg+xml" && !reads.pictures) return undefined;
  if (type.startsWith("image/") || (!type && PICTURE.test(name))) return "picture";
  return type.startsWith("audio/") || (!type && SOUND.test(name)) ? "sound" : undefined;
}

/** The text of a file; an error in words if it is none. */
async function readText(file) {
  if (file.size > LARGEST_TEXT) {
    throw new Error(`${file.name} is too large: files may have up to 1 MB of text.`);
  }
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch {
    // said below
  }
  throw new Error(`${file.name} is not a text file, a picture or a sound, and nothing else can be attached.`);
}

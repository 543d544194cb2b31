// Pictures and sounds of a message: small ones in the thread, which open large or are played.

import { Player } from "../media/sound.js";
import { bytes, clock, count } from "../words.js";
import { openDialog } from "./dialogs.js";
import { fill, h, icon, iconButton } from "./dom.js";

/** "640 × 480 · 12 kB", or "0:12 · 384 kB". */
export function aboutMedia({ kind, width, height, from, seconds, size }) {
  const sized = (each) => `${count(each.width)} × ${count(each.height)}`;
  const smaller = from ? ` of ${sized(from)}` : "";
  const extent = kind === "picture" ? sized({ width, height }) + smaller : clock(seconds);
  return `${extent} · ${bytes(size)}`;
}

/** What a message has, as elements of a list. */
export function mediaList(media, library) {
  return media.map((each) => h("li", {}, each.kind === "picture" ? picture(each, library) : sound(each, library)));
}

/** A picture that opens large. */
export function picture(media, library, props = {}) {
  const { name, digest, width, height } = media;
  const image = h("img", { alt: name, width, height, decoding: "async", draggable: "false" });
  const open = () => image.src && enlarge(media, image.src);
  const title = `${name}, ${aboutMedia(media)}`;
  const label = { title, "aria-label": `Enlarge ${name}` };
  const button = h("button", { type: "button", class: "picture", onclick: open, ...label, ...props }, image);
  library.url(digest).then((url) => {
    if (url) image.src = url;
    else button.replaceWith(gone(media));
  });
  return button;
}

function enlarge(media, url) {
  const { name, width, height } = media;
  const image = h("img", { src: url, alt: name, width, height });
  openDialog(name, { class: "large" }, image, h("p", { class: "hint" }, aboutMedia(media)));
}

function gone({ kind, name }) {
  return h("p", { class: "gone" }, icon("warning"), `The ${kind} ${name} is not in this browser any more.`);
}

/** A sound that is played here. */
export function sound(media, library) {
  const player = new Player();
  const playing = (on) => {
    fill(button, icon(on ? "stop" : "play"));
    const label = `${on ? "Stop" : "Play"} ${media.name}`;
    button.title = label;
    button.setAttribute("aria-label", label);
    button.dataset.plays = on;
  };
  const toggle = async () => {
    if (button.dataset.plays === "true") return player.stop();
    const blob = await library.blob(media.digest);
    if (!blob) return element.replaceWith(gone(media));
    playing(true);
    return player.play(blob, () => playing(false));
  };
  const button = iconButton("play", "", toggle);
  playing(false);
  const size = h("span", { class: "size" }, clock(media.seconds));
  const element = h("div", { class: "sound" }, button, h("span", { class: "name" }, media.name), size);
  return element;
}

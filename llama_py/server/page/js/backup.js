// All conversations as one JSON file, and back.

import { newId, newRecord } from "./conversation.js";
import { dataUrl, fromDataUrl, mediaFields } from "./media/library.js";
import { sha256 } from "./media/sha256.js";
import { cleanOptions } from "./request.js";

const FORMAT = "llama-py-chat";
/** From the second version on, there may be pictures and sounds. */
const VERSION = 2;
const ROLES = ["user", "assistant", "tool"];

/** Everything, or the conversations with the given ids: pieces of a text. */
export async function exportAll(store, ids = null) {
  const records = await store.conversations();
  const wanted = ids ? records.filter((record) => ids.includes(record.id)) : records;
  const conversations = [];
  for (const record of wanted) {
    conversations.push({ ...record, messages: await store.messages(record.id) });
  }
  const media = await mediaOf(store, conversations);
  const version = media.length ? VERSION : 1;
  const head = { format: FORMAT, version, exported: new Date().toISOString() };
  const text = JSON.stringify({ ...head, conversations, ...(media.length ? { media: {} } : {}) }, null, 1);
  // Many pictures are more than fits into one string.
  return media.length ? [text.replace(/\}\s*\}$/, ""), ...media, "\n }\n}"] : [text];
}

/** Each picture and sound once, as lines of a JSON object from digests to data URLs. */
async function mediaOf(store, conversations) {
  const messages = conversations.flatMap((each) => each.messages);
  const lines = [];
  for (const digest of new Set(messages.flatMap(({ digests = [] }) => digests))) {
    const blob = await store.media(digest);
    if (blob) lines.push(`${lines.length ? "," : ""}\n  "${digest}": "${await dataUrl(blob)}"`);
  }
  return lines;
}

/**
 * Adds the conversations of a file. One that is there already is left as it is if it is the same,
 * and added a second time if it is not.
 *
 * @returns {Promise<{added: number, known: number}>}
 * @throws {Error} whose message says what is wrong with the file; nothing was added then
 */
export async function importAll(store, text) {
  const file = readFile(text);
  const conversations = file.conversations.map(readConversation);
  const found = readMedia(file.media ?? {});
  const kept = new Map((await store.conversations()).map((record) => [record.id, record]));
  const records = [];
  const messages = [];
  let known = 0;
  for (const each of conversations) {
    const old = kept.get(each.record.id);
    if (old && old.updated === each.record.updated) {
      known += 1;
      continue;
    }
    const { record, messages: own } = old ? renamed(each) : each;
    records.push(record);
    messages.push(...own);
  }
  const used = new Set(messages.flatMap(({ digests = [] }) => digests));
  await store.save({ records, messages, media: found.filter(({ digest }) => used.has(digest)) });
  return { added: records.length, known };
}

function readFile(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("This is JSON, but not an export of this page.");
  }
  if (file.version > VERSION) {
    throw new Error("This file was written by a newer version. Update the server first.");
  }
  return file;
}

function readMedia(given) {
  return Object.entries(given).map(([digest, url], index) => {
    const read = fromDataUrl(url);
    if (read && sha256(read.bytes) === digest) return { digest, blob: read.blob };
    throw new Error(`Picture or sound ${index + 1} of the file cannot be read.`);
  });
}

function readConversation(given, index) {
  const where = `Conversation ${index + 1} of the file`;
  if (typeof given?.id !== "string" || !Array.isArray(given.messages)) {
    throw new Error(`${where} is incomplete.`);
  }
  const record = { ...newRecord(), ...fieldsLike(RECORD, given), options: cleanOptions(given.options) };
  const messages = given.messages.map((message) => readMessage(message, given.id));
  if (!messages.every(Boolean) || !isTree(messages)) {
    throw new Error(`${where} has a message that cannot be read.`);
  }
  return { record, messages };
}

const RECORD = newRecord({ leaf: "", firstSeen: "" });
const MESSAGE = { reasoning: "", call: "", name: "", finish: "", model: "", edited: true };
const NUMBERS = { usage: ["prompt", "reused", "reply", "pictures", "sounds"], speed: ["first", "rate", "thought"] };

/** A message with the fields that are known and of the right type; null if it is none. */
function readMessage(given, conversation) {
  const sound =
    typeof given?.id === "string" &&
    ROLES.includes(given.role) &&
    typeof given.content === "string" &&
    typeof given.created === "number" &&
    (given.parent === null || typeof given.parent === "string");
  if (!sound) return null;
  const { id, role, content, created, parent, status } = given;
  return {
    ...{ id, conversation, role, content, created, parent },
    ...fieldsLike(MESSAGE, given),
    ...(role === "assistant" ? { status: status === "failed" ? "stopped" : (status ?? "done") } : {}),
    ...lists(given),
    ...numbers(given),
  };
}

function fieldsLike(template, given) {
  const named = Object.keys(template).filter((name) => typeof given[name] === typeof template[name]);
  return Object.fromEntries(named.map((name) => [name, given[name]]));
}

function lists({ calls, files, media, logprobs }) {
  const read = {};
  if (areAll(calls, ["id", "name", "arguments"])) read.calls = calls;
  if (areAll(files, ["name", "text"])) read.files = files;
  if (areAll(media, ["digest", "kind", "name"])) Object.assign(read, mediaFields(media.filter(isMedia).map(readOne)));
  const tokens = areAll(logprobs, ["token"]) && logprobs.every((each) => Number.isFinite(each.logprob));
  if (tokens) read.logprobs = logprobs;
  return read;
}

function isMedia({ kind, size, width, height, seconds }) {
  const numbers = { picture: [size, width, height], sound: [size, seconds] }[kind];
  return numbers?.every((number) => Number.isFinite(number));
}

function readOne({ digest, kind, name, size, width, height, seconds, from }) {
  if (kind === "sound") return { digest, kind, name, size, seconds };
  const larger = Number.isFinite(from?.width) && Number.isFinite(from?.height);
  return { digest, kind, name, size, width, height, ...(larger ? { from } : {}) };
}

function areAll(list, texts) {
  const isOne = (each) => texts.every((name) => typeof each?.[name] === "string");
  return Array.isArray(list) && list.every(isOne);
}

function numbers(given) {
  const read = {};
  for (const [group, names] of Object.entries(NUMBERS)) {
    const known = names.filter((name) => Number.isFinite(given[group]?.[name]));
    if (known.length) read[group] = Object.fromEntries(known.map((name) => [name, given[group][name]]));
  }
  return read;
}

/** Whether every message leads back to a first one. */
function isTree(messages) {
  const parents = new Map(messages.map(({ id, parent }) => [id, parent]));
  const rooted = new Set([null]);
  for (const { id } of messages) {
    const way = new Set();
    let at = id;
    for (; !rooted.has(at); at = parents.get(at)) {
      if (way.has(at) || !parents.has(at)) return false;
      way.add(at);
    }
    for (const each of way) rooted.add(each);
  }
  return parents.size === messages.length;
}

/** The same with new ids. */
function renamed({ record, messages }) {
  const ids = new Map(messages.map((message) => [message.id, newId()]));
  const id = newId();
  const other = (old) => ids.get(old) ?? null;
  return {
    record: { ...record, id, leaf: other(record.leaf), firstSeen: other(record.firstSeen) },
    messages: messages.map((message) => ({
      ...message,
      id: other(message.id),
      parent: other(message.parent),
      conversation: id,
    })),
  };
}

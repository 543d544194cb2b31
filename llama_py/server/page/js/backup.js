// All conversations as one JSON file, and back.

import { newId, newRecord } from "./conversation.js";
import { cleanOptions } from "./request.js";

const FORMAT = "llama-py-chat";
const VERSION = 1;
const ROLES = ["user", "assistant", "tool"];

/** Everything, or the conversations with the given ids, as text. */
export async function exportAll(store, ids = null) {
  const records = await store.conversations();
  const wanted = ids ? records.filter((record) => ids.includes(record.id)) : records;
  const conversations = [];
  for (const record of wanted) {
    conversations.push({ ...record, messages: await store.messages(record.id) });
  }
  const head = { format: FORMAT, version: VERSION, exported: new Date().toISOString() };
  return JSON.stringify({ ...head, conversations }, null, 1);
}

/**
 * Adds the conversations of a file. One that is there already is left as it is if it is the same,
 * and added a second time if it is not.
 *
 * @returns {Promise<{added: number, known: number}>}
 * @throws {Error} whose message says what is wrong with the file; nothing was added then
 */
export async function importAll(store, text) {
  const conversations = readFile(text).map(readConversation);
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
  await store.save({ records, messages });
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
  return file.conversations;
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
const NUMBERS = { usage: ["prompt", "reused", "reply"], speed: ["first", "rate", "thought"] };

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

function lists({ calls, files, logprobs }) {
  const read = {};
  if (areAll(calls, ["id", "name", "arguments"])) read.calls = calls;
  if (areAll(files, ["name", "text"])) read.files = files;
  const tokens = areAll(logprobs, ["token"]) && logprobs.every((each) => Number.isFinite(each.logprob));
  if (tokens) read.logprobs = logprobs;
  return read;
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

// The body of `POST /v1/chat/completions` for a branch of a conversation. Only what a person has set
// is sent; everything else is the server's default.

/**
 * Parameters that can be set for a conversation: the field of the body, what it is called, and its
 * range. `props` names the server's default in `GET /props`, where it differs.
 */
export const PARAMETERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 5, step: 0.1,
    help: "0: always the likeliest token." },
  { name: "max_tokens", label: "Longest reply", min: 1, step: 1,
    help: "In tokens. Empty: until the context is full." },
  { name: "top_p", label: "Top-p", min: 0, max: 1, step: 0.05 },
  { name: "top_k", label: "Top-k", min: 0, step: 1 },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01 },
  { name: "repeat_penalty", label: "Repeat penalty", min: 0.1, max: 3, step: 0.05 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { name: "seed", label: "Seed", min: 0, step: 1, help: "The same seed repeats a reply." },
];

/**
 * A request for the reply to the last message of a path.
 *
 * @param {import("./conversation.js").Conversation} conversation
 * @param {import("./conversation.js").Message[]} path messages up to the one to reply to; the last
 *   one may be the beginning of the reply
 * @param {{model?: string, part?: "content", urls?: Map<string, string>,
 *   certain?: boolean}} [choice] `part`: what of a
 *   reply that has begun is to go on; its content, even if there is nothing of it yet, or whatever
 *   came last; `urls`: data URLs of the pictures and sounds, by digest; `certain`: with the
 *   probabilities of this reply, whatever the conversation's setting is
 */
export function chatBody(conversation, path, { model, part, urls, certain } = {}) {
  const { options, system, id } = conversation.record;
  const begun = path.at(-1)?.role === "assistant";
  return {
    ...(model ? { model } : {}),
    messages: chatMessages(system, path.slice(conversation.firstSeenIn(path)), urls),
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    session_id: id,
    ...parameters(options),
    ...(options.logprobs || certain ? { logprobs: true, top_logprobs: 5 } : {}),
    ...(options.tools?.length ? { tools: options.tools } : {}),
    ...(options.schema ? { response_format: schemaFormat(options.schema) } : {}),
    ...(begun ? { continue_final_message: part ?? true } : {}),
  };
}

function parameters(options) {
  const set = {};
  for (const { name } of PARAMETERS) {
    if (typeof options[name] === "number") set[name] = options[name];
  }
  if (options.stop?.length) set.stop = options.stop;
  if (typeof options.thinking === "boolean") set.enable_thinking = options.thinking;
  return set;
}

/** Options of a conversation without whatever is unknown or of the wrong type. */
export function cleanOptions(given) {
  const options = {};
  for (const { name } of PARAMETERS) {
    if (typeof given?.[name] === "number") options[name] = given[name];
  }
  for (const name of ["thinking", "logprobs", "leaveOut"]) {
    if (typeof given?.[name] === "boolean") options[name] = given[name];
  }
  const stop = Array.isArray(given?.stop) ? given.stop.filter((each) => typeof each === "string") : [];
  if (stop.length) options.stop = stop;
  if (Array.isArray(given?.tools)) options.tools = given.tools;
  if (given?.schema && typeof given.schema === "object") options.schema = given.schema;
  return options;
}

function schemaFormat(schema) {
  return { type: "json_schema", json_schema: { name: "reply", schema } };
}

/** Messages in the form of the API. */
export function chatMessages(system, path, urls) {
  const messages = path.filter(saysSomething).map((message) => chatMessage(message, urls));
  return system.trim() ? [{ role: "system", content: system }, ...messages] : messages;
}

// A reply that failed before it began stays in the conversation, but was never said.
function saysSomething({ role, content, calls, reasoning }) {
  return role !== "assistant" || Boolean(content || calls?.length || reasoning);
}

function chatMessage(message, urls) {
  if (message.role === "tool") {
    return { role: "tool", tool_call_id: message.call, content: message.content };
  }
  if (message.role === "user") return { role: "user", content: userContent(message, urls) };
  const reply = { role: "assistant", content: message.content };
  if (message.reasoning) reply.reasoning_content = message.reasoning;
  if (message.calls?.length) {
    reply.tool_calls = message.calls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
    if (!message.content) reply.content = null;
  }
  return reply;
}

/** A text, or a list of parts: pictures and sounds come before what is said of them. */
function userContent(message, urls) {
  const text = withFiles(message);
  if (!message.media?.length) return text;
  const parts = message.media.map(({ kind, digest }) => mediaPart(kind, urls.get(digest)));
  return text ? [...parts, { type: "text", text }] : parts;
}

function mediaPart(kind, url) {
  if (kind === "picture") return { type: "image_url", image_url: { url } };
  const data = url.slice(url.indexOf(",") + 1);
  return { type: "input_audio", input_audio: { data, format: "wav" } };
}

/** Files come before the question, each in a fence that is longer than any inside. */
function withFiles({ content, files = [] }) {
  const parts = files.map(({ name, text }) => {
    const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `File ${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, content].filter(Boolean).join("\n\n");
}

// What to do when a conversation no longer fits into the context: leave out its oldest turns, or go
// on in a new one with a summary.

import { chatBody } from "./request.js";

/** The share of the context that the turns which are kept may take, so that there is room again for
 * a while: what is left has to be read again once, and then only what is new. */
const KEEP = 0.5;

/**
 * The message from which on the model should see the conversation.
 *
 * @param {import("./conversation.js").Conversation} conversation
 * @param {import("./conversation.js").Message[]} path up to the message to reply to
 * @param {number} limit tokens that the context holds
 * @param {(path: object[]) => Promise<number>} count tokens of a prompt
 * @param {boolean} less something has to go, whatever is counted
 * @returns {Promise<string|null>} its id; null if even the last turn alone does not fit
 */
export async function chooseFirst(conversation, path, limit, count, less) {
  const now = conversation.firstSeenIn(path);
  const starts = turnsOf(path).filter((index) => index > now || (index === now && !less));
  if (!starts.length) return null;
  const tokens = new Map();
  const tokensFrom = async (place) => {
    if (!tokens.has(place)) tokens.set(place, await count(path.slice(starts[place])));
    return tokens.get(place);
  };
  // Fewer turns have fewer tokens: the earliest start that fits is found by halving.
  let place = await earliest(starts.length, async (at) => (await tokensFrom(at)) <= limit * KEEP);
  if (place === starts.length) {
    const last = starts.length - 1;
    if ((await tokensFrom(last)) > limit) return null;
    place = last;
  }
  return path[starts[place]].id;
}

/** Indexes of the messages of a path that begin a turn. */
function turnsOf(path) {
  return path.flatMap((message, index) => (message.role === "user" ? [index] : []));
}

async function earliest(count, fits) {
  let [low, high] = [0, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (await fits(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Tokens of a character where only a lower bound of a prompt's length is known: more than usual. */
const MANY = 0.5;

/**
 * A function that counts the tokens of a prompt: it asks the server, or estimates from a prompt of
 * known length if the server cannot say. A prompt that is too long to be counted has at least as
 * many as the server says, which are more than fit.
 */
export function counter(api, conversation, known, choice) {
  const found = known.tokens / Math.max(1, lengthOf(known.path));
  const perCharacter = known.isBound ? Math.max(found, MANY) : found;
  let asks = true;
  return async (path) => {
    if (asks) {
      try {
        const body = chatBody(conversation, path, choice);
        return await api.countTokens({ ...body, stream: false });
      } catch (error) {
        if (error.kind === "overflow" && error.tokens) return error.tokens;
        asks = false;
      }
    }
    return Math.ceil(lengthOf(path) * perCharacter);
  };
}

function lengthOf(path) {
  return path.reduce((sum, { content, reasoning = "", files = [] }) => {
    const attached = files.reduce((all, file) => all + file.text.length, 0);
    return sum + content.length + reasoning.length + attached;
  }, 0);
}

const ASK =
  "Summarise our conversation so far in a few sentences, for somebody who is to continue it. Keep " +
  "names, numbers, decisions and open questions.";

/** The body of a request for a summary of a path, which has to fit. */
export function summaryBody(conversation, path, choice) {
  const asked = { role: "user", content: ASK };
  const { tools, response_format: format, logprobs, ...body } = chatBody(
    conversation,
    [...path, asked],
    choice,
  );
  return { ...body, max_tokens: 400, session_id: `${conversation.id}-summary` };
}

/** The system prompt of a conversation that goes on from a summary. */
export function systemWithSummary(system, summary) {
  const note = `Summary of the conversation so far:\n${summary.trim()}`;
  return [system.trim(), note].filter(Boolean).join("\n\n");
}

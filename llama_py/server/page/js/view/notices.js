// What went wrong with a reply, and what can be done about it: always in words, always with a way on.

import { count, failure, tokens } from "../words.js";
import { h, icon } from "./dom.js";

/**
 * @param {object} about `id` of the reply, its `error`, whether some of it was `kept`
 * @param {object} actions
 */
export function failureNotice(about, actions) {
  const { id, error = { kind: "broken" }, kept } = about;
  if (error.kind === "overflow") return overflowNotice(about, actions);
  const { title, text } = failure(error, kept);
  const ways = [["Try again", () => actions.retry(id)]];
  if (error.kind === "key") ways.splice(0, 1, ["Enter the key", () => actions.enterKey(id)]);
  else if (kept && about.content && about.isLast) ways.unshift(["Continue", () => actions.continue(id)]);
  return notice({ title, text, ways, urgent: true });
}

/** The reply ended because there was no more room for it. */
export function limitNotice({ id, usage, isLast, limit }, actions) {
  const total = (usage?.prompt ?? 0) + (usage?.reply ?? 0);
  const full = limit && total >= limit - 1;
  if (!isLast) return h("p", { class: "cut" }, full ? "The context was full." : "Cut off at the longest reply.");
  if (full) {
    const text = `The conversation has reached the ${tokens(limit)} that the context holds, so the reply ends here.`;
    return notice({ title: "The context is full", text, ways: roomFor(id, actions, false) });
  }
  const text = `It has ${tokens(usage?.reply ?? 0)}, as many as it may have.`;
  const ways = [
    ["Continue", () => actions.continue(id)],
    ["Change the limit", () => actions.settings("max_tokens")],
  ];
  return notice({ title: "The reply was cut off", text, ways });
}

function overflowNotice({ id, error }, actions) {
  const { tokens: has, limit, isBound } = error;
  const length = `${isBound ? "at least " : ""}${tokens(has)}`;
  const numbers = has && limit ? `It has ${length}, and the context of this model holds ${count(limit)}.` : "";
  const alone = error.alone ? "Even the last message alone is too long. Shorten it, or attach less." : "";
  const text = `The conversation no longer fits. ${numbers} Nothing was cut off, and nothing is lost. ${alone}`;
  const ways = error.alone ? [["Edit the message", () => actions.editLast()]] : roomFor(id, actions, true);
  return notice({ title: "The context is full", text, ways, urgent: true });
}

/** The three ways on. */
function roomFor(id, actions, asks) {
  return [
    ["Leave out the oldest turns", () => actions.leaveOut(id), asks ? "and send again" : "and continue"],
    ["Start a new conversation", () => actions.summarise(id), "with a summary of this one"],
    ["Change the setting", () => actions.settings("leaveOut"), "for this and the next time"],
  ];
}

function notice({ title, text, ways, urgent = false }) {
  const large = ways.some(([, , detail]) => detail);
  const buttons = ways.map(([label, run, detail], index) => {
    const props = { type: "button", class: large ? "way" : `button ${index ? "" : "main"}`, onclick: run };
    return h("button", props, h("span", {}, label), detail && h("small", {}, detail));
  });
  return h(
    "section",
    { class: "notice", role: urgent ? "alert" : "note" },
    h("h3", {}, icon("warning"), title),
    h("p", {}, text),
    h("div", { class: large ? "ways" : "buttons" }, buttons),
  );
}

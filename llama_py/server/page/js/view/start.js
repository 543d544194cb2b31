// What is there before the first message: a word about the model, and something to begin with.

import { h, icon } from "./dom.js";

const WEATHER = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather of a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
    },
  },
};

/** For the model that comes with the package: what it was trained to do. */
const DEMO = [
  { label: "Arithmetic", text: "What is 7 + 8?" },
  { label: "Memory", text: "My name is Anna." },
  { label: "JSON", text: "Give me a JSON object with name Alice and age 30." },
  { label: "A tool", text: "What is the weather in Paris?", tools: [WEATHER] },
];

const ANY = [
  { label: "Explain", text: "Explain how a bicycle stays upright, in three sentences." },
  { label: "Compare", text: "Compare tea and coffee in a short table." },
  { label: "Write", text: "Write a Python function that reads a CSV file, with a test." },
  { label: "Plan", text: "Plan a day in a town by the sea, hour by hour." },
];

const DEMO_ABOUT =
  "A demonstration of three million parameters: it adds, counts, remembers a name, writes small " +
  "JSON and calls a tool. It knows nothing else.";
const about = (model) =>
  `${model ? `The model ${model}` : "The model"} runs in this server. Conversations stay in this browser.`;

/**
 * @param {HTMLElement} element
 * @param {string} model
 * @param {(starter: {text: string, tools?: object[]}) => void} begin
 * @param {string} [hint] what could make the server faster
 */
export function showStart(element, model, begin, hint = "") {
  const demo = /^demo(-chat|$)/.test(model);
  const cards = (demo ? DEMO : ANY).map((starter) =>
    h(
      "button",
      { type: "button", class: "starter", onclick: () => begin(starter) },
      h("span", { class: "label" }, starter.label),
      h("span", { class: "text" }, starter.text),
      icon("onward"),
    ),
  );
  element.replaceChildren(
    h("h2", {}, "What shall we talk about?"),
    h("p", {}, demo ? DEMO_ABOUT : about(model)),
    h("div", { class: "starters" }, cards),
    ...(hint ? [h("p", { class: "hint" }, hint)] : []),
  );
}

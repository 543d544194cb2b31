// What the page says: numbers, times and what went wrong, in words.

const whole = new Intl.NumberFormat("en");

/** 2011 as "2,011". */
export function count(number) {
  return whole.format(Math.round(number));
}

export function tokens(number) {
  return number === 1 ? "1 token" : `${count(number)} tokens`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Milliseconds as "0.4 s" or "2 min 5 s". */
export function duration(milliseconds) {
  const seconds = milliseconds / 1000;
  if (seconds < 0.0995) return `${Math.max(1, Math.round(milliseconds))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

export function rate(perSecond) {
  return `${perSecond < 10 ? perSecond.toFixed(1) : count(perSecond)} tokens/s`;
}

export function percent(share) {
  return `${Math.floor(share * 100)} %`;
}

/** A probability: never "100 %" or "0 %" where it is only near that. */
export function probability(share) {
  if (share >= 0.9995) return share === 1 ? "100 %" : "> 99.9 %";
  if (share < 0.0005) return "< 0.1 %";
  return `${(share * 100).toFixed(1)} %`;
}

/** The tokens of a prompt, and what among them was a picture or a sound. */
export function promptSize({ prompt, pictures, sounds }) {
  const media = [pictures && plural(pictures, "picture"), sounds && plural(sounds, "sound")];
  const named = media.filter(Boolean).join(", ");
  return named ? `${tokens(prompt)} (${named})` : tokens(prompt);
}

/** What was reused of a prompt, as one sentence. */
export function reuse({ reused, ...size }) {
  return `reused ${count(reused)} of ${promptSize(size)}`;
}

/** Bytes as "3 kB" or "1.2 MB". */
export function bytes(number) {
  if (number < 999_500) return `${count(Math.max(1, number / 1000))} kB`;
  return `${(number / 1_000_000).toFixed(1)} MB`;
}

/** Seconds as "0:05". */
export function clock(seconds) {
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** Groups of the list of conversations. */
export function dayOf(time, now = new Date()) {
  const start = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const day = 24 * 60 * 60 * 1000;
  if (time >= start) return "Today";
  if (time >= start - day) return "Yesterday";
  if (time >= start - 7 * day) return "Last seven days";
  return new Intl.DateTimeFormat("en", { month: "long", year: "numeric" }).format(time);
}

/** A title from the first words of a conversation. */
export function titleFrom(text) {
  const line = text.trim().split("\n").find((each) => each.trim()) ?? "";
  const words = line.replace(/[#*_`>]+/g, "").trim();
  return words.length > 60 ? `${words.slice(0, 58).trimEnd()}…` : words;
}

// -- what went wrong --------------------------------------------------------------------------------

const FAILURES = {
  unreachable: {
    title: "The server does not answer",
    text: () => "It may have been stopped, or the network is down. Nothing is lost: try again when it is back.",
  },
  broken: {
    title: "The connection broke",
    text: (_, kept) =>
      kept
        ? "What had come by then is kept. Continue goes on from there."
        : "Nothing had come by then. Try again when the server is back.",
  },
  key: {
    title: "The server asks for a key",
    text: () => "Enter the API key that the server was started with. The message is kept and sent then.",
  },
  forbidden: {
    title: "This key may not do that",
    text: ({ message }) => sentence(message),
  },
  overflow: { title: "The context is full", text: () => "" },
  "too-large": {
    title: "The request is too large",
    text: ({ message }) => `${sentence(message)} Attach less, or start a new conversation.`,
  },
  busy: {
    title: "The server is busy",
    text: ({ message }) => `${sentence(message)} Nothing is lost: try again in a moment.`,
  },
  timeout: {
    title: "It took too long",
    text: ({ message }) => `${sentence(message)} What had come by then is kept.`,
  },
  missing: {
    title: "A picture or sound is gone",
    text: ({ message }) => `${sentence(message)} Edit the message and attach it again, or delete it.`,
  },
  refused: {
    title: "The server refused the request",
    text: ({ message }) => sentence(message),
  },
  server: {
    title: "Something went wrong in the server",
    text: ({ message }) => `${sentence(message)} The log of the server says more.`,
  },
};

/** `{title, text}` about an error of a reply; `kept` says whether some of the reply had come. */
export function failure(error, kept) {
  const known = FAILURES[error.kind] ?? FAILURES.server;
  return { title: known.title, text: known.text(error, kept) };
}

/** A message of the server as a sentence. */
export function sentence(message) {
  const text = String(message ?? "").trim();
  if (!text) return "";
  const begun = text[0].toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

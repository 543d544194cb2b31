// SHA-256, by which pictures and sounds are known. The browser's own does not exist on plain http.

const PRIMES = firstPrimes(64);
/** The first 32 bits behind the point of the primes' roots. */
const fraction = (root) => ((root % 1) * 2 ** 32) | 0;
const K = Int32Array.from(PRIMES, (prime) => fraction(Math.cbrt(prime)));
const START = Int32Array.from(PRIMES.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));

function firstPrimes(count) {
  const primes = [];
  for (let n = 2; primes.length < count; n += 1) if (primes.every((p) => n % p)) primes.push(n);
  return primes;
}

/** The digest of bytes, in hexadecimal. @param {Uint8Array} bytes */
export function sha256(bytes) {
  const state = Int32Array.from(START);
  const whole = bytes.length & ~63;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 0; at < whole; at += 64) mix(state, view, at);
  const end = ending(bytes.subarray(whole), bytes.length);
  for (let at = 0; at < end.byteLength; at += 64) mix(state, end, at);
  return Array.from(state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}

/** The last bytes, a one, zeros, and the length in bits. */
function ending(rest, length) {
  const bytes = new Uint8Array(rest.length < 56 ? 64 : 128);
  bytes.set(rest);
  bytes[rest.length] = 0x80;
  const view = new DataView(bytes.buffer);
  view.setUint32(bytes.length - 8, Math.floor(length / 2 ** 29));
  view.setUint32(bytes.length - 4, length << 3);
  return view;
}

const turned = (word, by) => (word >>> by) | (word << (32 - by));
const words = new Int32Array(64);

function mix(state, view, at) {
  for (let i = 0; i < 16; i += 1) words[i] = view.getInt32(at + 4 * i);
  for (let i = 16; i < 64; i += 1) {
    const [near, far] = [words[i - 2], words[i - 15]];
    const one = turned(far, 7) ^ turned(far, 18) ^ (far >>> 3);
    const two = turned(near, 17) ^ turned(near, 19) ^ (near >>> 10);
    words[i] = words[i - 16] + one + words[i - 7] + two;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i += 1) {
    const choice = (e & f) ^ (~e & g);
    const one = (h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + choice + K[i] + words[i]) | 0;
    const majority = (a & b) ^ (a & c) ^ (b & c);
    const two = ((turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + majority) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + one) | 0;
    d = c;
    c = b;
    b = a;
    a = (one + two) | 0;
  }
  [a, b, c, d, e, f, g, h].forEach((word, index) => (state[index] += word));
}

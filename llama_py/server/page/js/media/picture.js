// Pictures as they are sent: PNG or JPEG, not larger than a model can make use of, upright, and on
// white where they are transparent. What is so already stays as it is, to the byte.

/** Bytes of the largest file that is read. */
const LARGEST_FILE = 64 << 20;
/** Pixels of the longer side, and bytes, of what is sent with every question. */
const LONGEST = 2048;
const LARGEST = 1 << 20;
/** Pixels of the longer side of a drawing, which has no size of its own. */
const DRAWING = 1024;
const QUALITY = 0.9;

/**
 * @param {File|Blob} file in whatever format the browser can show
 * @param {string} name for what went wrong
 * @returns {Promise<{blob: Blob, width: number, height: number, from?: {width, height}}>} `from`:
 *   its size before it was made smaller
 */
export async function readPicture(file, name) {
  if (file.size > LARGEST_FILE) throw new Error(`${name} is too large: pictures may have up to 64 MB.`);
  const head = await beginning(file);
  const url = URL.createObjectURL(file);
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    return await fitting(file, head, image);
  } catch {
    throw new Error(`${name} is not a picture that this browser can show.`);
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** The first bytes of a file as characters, which are the same below 0x80 and from 0xa0 on. */
async function beginning(file) {
  return new TextDecoder("windows-1252").decode(await file.slice(0, 1 << 16).arrayBuffer());
}

async function fitting(file, head, image) {
  const { naturalWidth: width, naturalHeight: height } = image;
  const type = typeThatStays(head);
  const longer = Math.max(width, height);
  if (type && longer <= LONGEST && file.size <= LARGEST) {
    return { blob: new Blob([file], { type }), width, height };
  }
  const scale = file.type === "image/svg+xml" ? DRAWING / longer : Math.min(1, LONGEST / longer);
  const size = { width: scaled(width, scale), height: scaled(height, scale) };
  const blob = await drawn(image, size, head.startsWith("\xff\xd8"));
  return { blob, ...size, ...(scale < 1 ? { from: { width, height } } : {}) };
}

const scaled = (length, scale) => Math.max(1, Math.round(length * scale));

// What decodes them for the model knows neither transparency nor which side of a photo is up.
function typeThatStays(head) {
  if (/^\xff\xd8\xff/.test(head)) return head.includes("Exif\0\0") ? null : "image/jpeg";
  if (!head.startsWith("PNG\r\n\x1a\n", 1)) return null;
  const seeThrough = head.charCodeAt(25) & 4 || head.includes("tRNS");
  return seeThrough || head.includes("eXIf") ? null : "image/png";
}

async function drawn(image, { width, height }, isPhoto) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { alpha: false });
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, width, height);
  const exact = isPhoto ? null : await encoded(canvas, "image/png");
  return exact && exact.size <= LARGEST ? exact : encoded(canvas, "image/jpeg");
}

function encoded(canvas, type) {
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("too large"))), type, QUALITY);
  });
}

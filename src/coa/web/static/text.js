// How texts and numbers are shown.
import { element, icon } from "./dom.js";
import { cutAt, rest } from "./pieces.js";

const ADDRESS = /https?:\/\/[^\s<>"'`]+/g;
const LONG = 1400; // characters of a text of the model's above which the rest is folded
const FIRST = 3000; // the same for results of tools

/** The address if it leads to the web, else null: `javascript:` and the like never become links. */
export function safeAddress(text) {
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

export function link(address, ...children) {
  const safe = safeAddress(address);
  if (safe === null) return element("span", {}, ...children);
  return element("a", { href: safe, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

/** Without the punctuation of the sentence around it. A pattern would take quadratic time, and strangers write texts. */
function withoutPunctuation(address) {
  let end = address.length;
  while (end > 0 && ".,;:!?)]}".includes(address[end - 1])) end -= 1;
  return address.slice(0, end);
}

// ---- characters that a page would hide, or that would turn its text around

const C0 = ("NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US").split(" ");
const NAMED = { 0x7f: "DEL", 0x61c: "ALM", 0x200b: "ZWSP", 0x200e: "LRM", 0x200f: "RLM", 0x2028: "LS", 0x2029: "PS", 0x202a: "LRE",
  0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM" };
const HIDDEN = "\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060\\u2066-\\u2069\\ufeff";
const HIDDEN_RUN = new RegExp(`([${HIDDEN}])\\1*`, "g");

function hiddenName(character) {
  const code = character.charCodeAt(0);
  return C0[code] ?? NAMED[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** The text as nodes. Control characters and marks that change the direction of text are shown by their names. */
export function visible(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(HIDDEN_RUN)) {
    if (found.index > end) nodes.push(text.slice(end, found.index));
    const code = found[1].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
    const times = found[0].length > 1 ? `×${found[0].length}` : "";
    nodes.push(element("span", { class: "control", title: `U+${code}` }, hiddenName(found[1]) + times));
    end = found.index + found[0].length;
  }
  if (end < text.length) nodes.push(end ? text.slice(end) : text);
  return nodes;
}

/** The same for a place that takes no elements, such as a title, and at most `most` characters of it. */
export function plain(text, most = 200) {
  const short = text.length > most ? `${text.slice(0, most)}…` : text;
  return short.replace(HIDDEN_RUN, (run, character) => `⟨${hiddenName(character)}⟩`);
}

/** The text as nodes, in which web addresses are links. */
export function linked(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(ADDRESS)) {
    const address = withoutPunctuation(found[0]);
    if (found.index > end) nodes.push(...visible(text.slice(end, found.index)));
    nodes.push(link(address, ...visible(address)));
    end = found.index + address.length;
  }
  if (end < text.length) nodes.push(...visible(text.slice(end)));
  return nodes;
}

const OMITTED = /^\[(?:\.\.\. (\d+) characters omitted \.\.\.|(\d+) characters cut|cut to fit the context|cut: [\d,]+ of [\d,]+ characters shown)\]$/gm;

/** As `linked`; a mark that something was cut out (coa/trajectory/shorten.py) stands out. */
export function observed(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(OMITTED)) {
    const count = Number(found[1] ?? found[2] ?? NaN);
    const words = Number.isNaN(count) ? found[0].slice(1, -1) : `${plural(count, "character")} cut out here`;
    nodes.push(...linked(text.slice(end, found.index)), element("span", { class: "omitted", title: found[0] }, words));
    end = found.index + found[0].length;
  }
  nodes.push(...linked(text.slice(end)));
  return nodes;
}

// ---- texts

/** Paragraphs with their line breaks. */
export function paragraphs(text) {
  return text.split(/\n\s*\n/).filter((part) => part.trim()).map((part) => element("p", {}, linked(part.trim())));
}

/** The parts that coa/web/texts.py found: lists, code and plain text. */
function drawn(parts) {
  return parts.flatMap((part) => {
    if (part.kind === "code") return [block({ label: part.language || "code", text: part.text, tokens: part.tokens })];
    if (part.kind === "text") return paragraphs(part.text);
    const items = part.items.map((item) => element("li", {}, linked(item)));
    return [element(part.ordered ? "ol" : "ul", { class: "items", start: part.ordered && part.start !== 1 ? part.start : null }, items)];
  });
}

/** A text of the model's. Of one that is long, the rest is folded. */
export function prose(text, parts = null) {
  if (parts !== null && text.length < 4 * LONG) return element("div", { class: "prose" }, drawn(parts));
  if (text.length < LONG) return element("div", { class: "prose" }, paragraphs(text));
  const cut = cutAt(text, LONG * 0.7, LONG * 0.3);
  return element("div", { class: "prose" }, paragraphs(text.slice(0, cut)),
    rest(text, cut, (piece) => paragraphs(piece), plural(text.length - cut, "more character")));
}

/** A labelled block of an argument or a result; code has its tokens in classes of the style sheet. */
export function block({ label, text, tokens }) {
  const code = element("code", {});
  const region = element("pre", { tabindex: "0", role: "group", "aria-label": label }, code);
  if (tokens) {
    code.append(...tokens.flatMap(([name, piece]) => (name ? [element("span", { class: `token ${name}` }, visible(piece))] : visible(piece))));
  } else if (text.length <= 1.3 * FIRST) {
    code.append(...observed(text));
  } else {
    const cut = cutAt(text, FIRST, 400);
    code.append(...observed(text.slice(0, cut)));
    region.append(rest(text, cut, (piece) => observed(piece), plural(text.length - cut, "more character")));
  }
  const copy = element("button", { type: "button", class: "copy quiet", title: `Copy the ${label}`,
    "aria-label": `Copy the ${label}`, click: () => copyText(text, copy) }, icon("copy"));
  const head = element("div", { class: "block-head" }, element("span", {}, label), copy);
  return element("div", { class: "block" }, head, region);
}

/** Copies, and says so on the button for a moment. Pages without TLS have no clipboard except on this machine. */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = element("textarea", { class: "unseen" });
    box.value = text;
    (button.closest("dialog") ?? document.body).append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  button.dataset.copied = "";
  setTimeout(() => delete button.dataset.copied, 1500);
}

export function plural(count, one) {
  return `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;
}

export function duration(seconds) {
  if (seconds < 0.0995) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
}

/** When, as people say it: the time today, else the date. */
export function moment(secondsSinceEpoch) {
  const date = new Date(secondsSinceEpoch * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return today
    ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : date.toLocaleDateString([], { day: "numeric", month: "short" });
}

/** 1,234 as 1.2k, for tables. */
export function short(count) {
  if (count === null || count === undefined) return "";
  if (count < 1000) return String(Math.round(count));
  if (count < 9950) return `${(count / 1000).toFixed(1)}k`;
  if (count < 999_500) return `${Math.round(count / 1000)}k`;
  return `${(count / 1e6).toFixed(1)}M`;
}

/** A score, reward or price: three digits that count. */
export function figure(value) {
  if (value === null || value === undefined) return "";
  if (value === 0 || Math.abs(value) >= 0.0005) return String(Math.round(value * 1000) / 1000);
  return value.toExponential(1);
}

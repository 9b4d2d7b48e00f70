// How texts and numbers are shown.
import { element, icon } from "./dom.js";

const ADDRESS = /https?:\/\/[^\s<>"'`]+/g;
const LONG = 900;

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

/** The text as nodes, in which web addresses are links. */
export function linked(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(ADDRESS)) {
    const address = withoutPunctuation(found[0]);
    if (found.index > end) nodes.push(text.slice(end, found.index));
    nodes.push(link(address, address));
    end = found.index + address.length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}

/** Paragraphs with their line breaks. */
export function paragraphs(text) {
  return text.split(/\n\s*\n/).filter((part) => part.trim()).map((part) => element("p", {}, linked(part.trim())));
}

/** A text of the model's. One that is long is cut by the style sheet, and a button shows all of it. */
export function prose(text) {
  const box = element("div", { class: "prose" }, paragraphs(text));
  if (text.length < LONG) return box;
  box.classList.add("cut");
  const more = element("button", { type: "button", class: "more", "aria-expanded": "false", click: () => {
    const cut = box.classList.toggle("cut");
    more.textContent = cut ? "Show all" : "Show less";
    more.setAttribute("aria-expanded", String(!cut));
  } }, "Show all");
  return element("div", {}, box, more);
}

/** A labelled block of an argument or a result; code has its tokens in classes of the style sheet. */
export function block({ label, text, tokens }) {
  const inside = tokens
    ? tokens.map(([name, piece]) => (name ? element("span", { class: `token ${name}` }, piece) : piece))
    : linked(text);
  const code = element("pre", { tabindex: "0", role: "region", "aria-label": label }, element("code", {}, inside));
  const copy = element("button", { type: "button", class: "copy quiet", title: `Copy the ${label}`,
    "aria-label": `Copy the ${label}`, click: () => copyText(text, copy) }, icon("copy"));
  const head = element("div", { class: "block-head" }, element("span", {}, label), copy);
  return element("div", { class: "block" }, head, code);
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

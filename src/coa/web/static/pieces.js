// Long texts. The beginning is on the page; the rest is folded and becomes elements only when somebody unfolds it, piece
// after piece, as far as one scrolls. So ten million characters cost as much as a few thousand until they are wanted.
import { element } from "./dom.js";

const PIECE = 12_000;
const AT_ONCE = 6;

/** A place near `wanted` at which a text can be cut: a line end within `slack` before it, else between characters. */
export function cutAt(text, wanted, slack = 2000) {
  const end = Math.floor(wanted);
  if (end >= text.length) return text.length;
  const line = text.lastIndexOf("\n", end - 1) + 1;
  if (line > end - slack && line > 0) return line;
  const blank = text.lastIndexOf(" ", end - 1) + 1;
  if (blank > end - 100 && blank > 0) return blank;
  const code = text.charCodeAt(end);
  return code >= 0xdc00 && code <= 0xdfff ? end - 1 : end;
}

/** The text behind `start`, folded. `draw` makes nodes of a piece. */
export function rest(text, start, draw, words) {
  return restOf(text.length, start, (at) => cutAt(text, at + PIECE), (from, to) => draw(text.slice(from, to)), words);
}

/** The same for anything that has a length: `next` gives the end of the piece that begins at a place, `draw` its nodes.
 * It is a native element, so that a saved page folds too. */
export function restOf(length, start, next, draw, words) {
  const fold = element("details", { class: "rest" }, element("summary", {}, element("span", { class: "show" }, `Show all · ${words}`),
    element("span", { class: "hide" }, "Show less")));
  let at = start;
  let watcher = null;
  const sentinel = element("span", { class: "sentinel" });
  function add(pieces) {
    for (let count = 0; count < pieces && at < length; count += 1) {
      const end = next(at);
      sentinel.before(element("span", { class: "piece" }, draw(at, end)));
      at = end;
    }
    watcher?.disconnect();
    if (at >= length) sentinel.remove();
    else watcher?.observe(sentinel); // again, since it says only what changes
  }
  fold.append(sentinel);
  fold.addEventListener("toggle", () => {
    if (!fold.open || at >= length || watcher) return;
    watcher = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && add(AT_ONCE), { rootMargin: "800px" });
    add(AT_ONCE);
  });
  fold.addEventListener("fill", () => add(Infinity));
  return fold;
}

/** Makes elements of everything that is folded, before the page is saved or printed. */
export function fillAll(within) {
  for (const fold of within.querySelectorAll("details.rest")) fold.dispatchEvent(new Event("fill"));
}

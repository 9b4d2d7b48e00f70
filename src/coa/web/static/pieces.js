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

/** The text behind `start`, folded. `draw` makes nodes of a piece. It is a native element, so a saved page folds too. */
export function rest(text, start, draw, words) {
  const fold = element("details", { class: "rest" }, element("summary", {}, element("span", { class: "show" }, `Show all · ${words}`),
    element("span", { class: "hide" }, "Show less")));
  let at = start;
  let watcher = null;
  const sentinel = element("span", { class: "sentinel" });
  function add(pieces) {
    for (let count = 0; count < pieces && at < text.length; count += 1) {
      const end = cutAt(text, at + PIECE);
      sentinel.before(element("span", { class: "piece" }, draw(text.slice(at, end))));
      at = end;
    }
    if (at >= text.length) {
      watcher?.disconnect();
      sentinel.remove();
    }
  }
  fold.append(sentinel);
  fold.addEventListener("toggle", () => {
    if (!fold.open || at >= text.length || watcher) return;
    watcher = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && add(AT_ONCE), { rootMargin: "800px" });
    if (at === start) add(AT_ONCE);
    watcher.observe(sentinel);
  });
  fold.addEventListener("fill", () => add(Infinity));
  return fold;
}

/** Makes elements of everything that is folded, before the page is saved or printed. */
export function fillAll(within) {
  for (const fold of within.querySelectorAll("details.rest")) fold.dispatchEvent(new Event("fill"));
}

// Keys that work wherever no text is being written.
import { showShortcuts } from "./dialogs.js";

/** `keys` maps keys to functions, or returns such a map. Moving by j and k goes over the visible steps of the whole page.
 * `shortcuts` returns what `?` lists, if it is not the keys for asking. */
export function listen(keys, { shortcuts } = {}) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const actions = typeof keys === "function" ? keys() : keys;
    const writing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "Escape") return void actions.Escape?.(event);
    if (writing) return;
    const action = { j: () => move(1), k: () => move(-1), "?": () => showShortcuts(shortcuts?.()), " ": unfold, ...actions }[event.key];
    if (action && action(event) !== false) event.preventDefault();
  });
}

/** The focus goes `by` elements on, among those that are visible. */
export function move(by, selector = ".step", within = document) {
  const all = [...within.querySelectorAll(selector)].filter((one) => one.offsetParent !== null);
  if (!all.length) return;
  const at = all.indexOf(document.activeElement.closest(selector));
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1)];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

/** Only for a step that was reached by the keys; elsewhere the space bar scrolls or presses what has the focus. */
export function unfold() {
  const details = document.activeElement.matches(".step") && document.activeElement.querySelector("details");
  if (!details) return false;
  details.open = !details.open;
  return true;
}

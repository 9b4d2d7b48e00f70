// What every page has: the theme, the shortcuts, the region that screen readers listen to, messages about failures.
import { showShortcuts } from "./dialogs.js";
import { element, find, icon } from "./dom.js";

const THEMES = ["auto", "light", "dark"];
const THEME_ICONS = { auto: "auto", light: "sun", dark: "moon" };

function theme() {
  return document.documentElement.dataset.theme ?? "auto";
}

function showTheme(button) {
  button.replaceChildren(icon(THEME_ICONS[theme()]));
  const words = `Theme: ${theme()}`;
  button.setAttribute("aria-label", words);
  button.title = words;
}

/** `shortcuts` returns what the button for shortcuts lists, if it is not the keys for asking. */
export function startFrame({ shortcuts } = {}) {
  const themes = find("#theme");
  showTheme(themes);
  themes.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    localStorage.setItem("coa-theme", next);
    showTheme(themes);
  });
  const button = find("#shortcuts");
  button.append(icon("keys"));
  button.addEventListener("click", () => showShortcuts(shortcuts?.()));
}

let timer = 0;

/** Says something to a screen reader; at most once a second, the newest. */
export function announce(text) {
  clearTimeout(timer);
  timer = setTimeout(() => (find("#announcer").textContent = text.slice(0, 400)), 400);
}

/** Shows what went wrong, for a while or until it is closed. */
export function complain(error) {
  const close = element("button", { type: "button", class: "quiet round", "aria-label": "Dismiss",
    click: () => notice.remove() }, icon("cross"));
  const notice = element("div", { class: "notice", role: "alert" }, element("span", {}, wording(error)), close);
  find("#notices").append(notice);
  setTimeout(() => notice.remove(), 15000);
}

export function wording(error) {
  if (error instanceof TypeError && /fetch/i.test(error.message)) return "The server does not answer. Is it still running?";
  return error.message ? error.message[0].toUpperCase() + error.message.slice(1) : String(error);
}

// Dialogs: the browser's own element keeps focus inside and closes on Esc.
import { element, icon } from "./dom.js";
import { copyText } from "./text.js";

function show(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.showModal();
  return dialog;
}

function titled(title, ...children) {
  const close = element("button", { type: "button", class: "quiet round", "aria-label": "Close",
    click: (event) => event.target.closest("dialog").close() }, icon("cross"));
  const head = element("header", {}, element("h2", {}, title), close);
  return element("dialog", { "aria-label": title }, element("div", { class: "dialog" }, head, ...children));
}

/** Resolves to whether the person agreed. */
export function confirmed(title, text, action) {
  return new Promise((resolve) => {
    let agreed = false;
    const cancel = element("button", { type: "button", click: () => dialog.close() }, "Cancel");
    const act = element("button", { type: "button", class: "danger", click: () => {
      agreed = true;
      dialog.close();
    } }, action);
    const dialog = titled(title, element("p", {}, text), element("div", { class: "buttons" }, cancel, act));
    show(dialog).addEventListener("close", () => resolve(agreed));
    act.focus();
  });
}

let asking = null;

/** Resolves to the key that the person enters. Requests that fail at the same time wait for the same dialog. */
export function askForKey(wasRefused) {
  asking ??= new Promise((resolve) => {
    const box = element("input", { type: "password", id: "key", autocomplete: "off", required: true });
    const note = wasRefused ? "The server did not accept this key." : "This server asks for a key.";
    const form = element("form", { submit: (event) => {
      event.preventDefault();
      if (!box.value.trim()) return;
      asking = null;
      dialog.close();
      resolve(box.value.trim());
    } },
      element("p", {}, `${note} It is kept in this tab only.`),
      element("label", { for: "key" }, "Key"),
      box,
      element("div", { class: "buttons" }, element("button", { class: "primary" }, "Continue")));
    const dialog = element("dialog", { "aria-label": "Key" },
      element("div", { class: "dialog" }, element("header", {}, element("h2", {}, "Key")), form));
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(dialog);
    dialog.addEventListener("close", () => dialog.remove());
    dialog.showModal();
    box.focus();
  });
  return asking;
}

const SHORTCUTS = [
  [["/"], "Write a question"],
  [["Enter"], "Send it"],
  [["Shift", "Enter"], "New line"],
  [["Esc"], "Stop the run"],
  [["j"], "Next step"],
  [["k"], "Previous step"],
  [["Space"], "Unfold or fold the step"],
  [["n"], "New conversation"],
  [["?"], "These shortcuts"],
];

/** `shortcuts` are [keys, words] pairs. */
export function showShortcuts(shortcuts = SHORTCUTS) {
  if (document.querySelector("dialog[open]")) return;
  const rows = shortcuts.map(([keys, what]) => [
    element("dt", {}, keys.map((key) => element("kbd", {}, key))),
    element("dd", {}, what),
  ]);
  show(titled("Keyboard", element("dl", { class: "shortcuts" }, rows.flat())));
}

/** `programs` are [name, text] pairs, each in a tab of its own. */
export function showPrograms(programs, note) {
  const code = element("code", {});
  const tabs = programs.map(([name, text]) => element("button", { type: "button", role: "tab", "aria-controls": "program",
    click: () => choose(name, text) }, name));
  const copy = element("button", { type: "button", class: "primary", click: () => copyText(code.textContent, copy) },
    icon("copy"), "Copy");
  function choose(name, text) {
    code.textContent = text;
    for (const tab of tabs) tab.setAttribute("aria-selected", String(tab.textContent === name));
  }
  choose(...programs[0]);
  show(titled("Ask this from your own code",
    element("div", { role: "tablist", class: "tabs" }, tabs),
    element("pre", { id: "program", role: "tabpanel", tabindex: "0" }, code),
    note ? element("p", { class: "soft" }, note) : null,
    element("div", { class: "buttons" }, copy)));
}

// The list of conversations.
import { call } from "./api.js";
import { confirmed } from "./dialogs.js";
import { element, find, icon } from "./dom.js";
import { complain } from "./frame.js";
import { moment } from "./text.js";

export class History {
  /** `open` shows a conversation, `gone` is called after one was deleted. */
  constructor({ open, gone }) {
    this.open = open;
    this.gone = gone;
    this.current = null;
    this.list = find("#conversations");
    find("#open-history").append(icon("menu"));
    find("#close-history").append(icon("cross"));
    find("#open-history").addEventListener("click", () => this.show(true));
    find("#close-history").addEventListener("click", () => this.show(false));
    find("#shade").addEventListener("click", () => this.show(false));
  }

  /** On a phone, where the list covers the page. */
  show(shown) {
    document.body.toggleAttribute("data-history", shown);
    find("#shade").hidden = !shown;
    find("#open-history").setAttribute("aria-expanded", String(shown));
    find(shown ? "#close-history" : "#open-history").focus();
  }

  get shown() {
    return document.body.hasAttribute("data-history");
  }

  async refresh() {
    const { conversations } = await call("GET", "/page/conversations");
    this.list.replaceChildren(...conversations.map((conversation) => this.#row(conversation)));
    find("#no-conversations").hidden = conversations.length > 0;
    this.mark(this.current);
  }

  mark(id) {
    this.current = id;
    for (const row of this.list.children) {
      const chosen = row.dataset.id === id;
      row.firstChild.toggleAttribute("data-current", chosen);
      if (chosen) row.firstChild.setAttribute("aria-current", "page");
      else row.firstChild.removeAttribute("aria-current");
    }
  }

  #row({ id, question, updated, running }) {
    const opened = element("a", { href: `/c/${encodeURIComponent(id)}`, title: question, click: (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      if (this.shown) this.show(false);
      this.open(id);
    } }, element("span", { class: "name" }, question),
      running ? element("span", { class: "pulse", role: "img", "aria-label": "running" }) : element("time", {}, moment(updated)));
    const remove = element("button", { type: "button", class: "quiet round", "aria-label": `Delete: ${question.slice(0, 80)}`,
      title: "Delete", click: () => this.#remove(id, question) }, icon("trash"));
    return element("li", { data: { id } }, opened, remove);
  }

  async #remove(id, question) {
    const words = `“${question.length > 90 ? `${question.slice(0, 90)}…` : question}” and the runs in it will be deleted from this server.`;
    if (!(await confirmed("Delete this conversation?", words, "Delete"))) return;
    try {
      await call("DELETE", `/page/conversations/${encodeURIComponent(id)}`);
      this.gone(id);
      await this.refresh();
    } catch (error) {
      complain(error);
    }
  }
}

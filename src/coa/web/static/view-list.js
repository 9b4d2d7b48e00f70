// Every run: filters, search, a page of rows. What is shown is in the address, so a view can be kept as a bookmark.
import { element, icon } from "./dom.js";
import { announce, complain } from "./frame.js";
import { FilterBar } from "./list-filters.js";
import { drawRow, COLUMNS } from "./list-rows.js";
import { runAddress } from "./outcome.js";
import { plural } from "./text.js";
import { remember, trail } from "./trail.js";
import { parameters } from "./view-data.js";

const LIMIT = 100;
const PAUSE_MS = 180; // between the last letter typed and the search
const found = new Set(); // columns that a run has, whatever is filtered: one can sort by them on every page

const SHORTCUTS = [
  [["j"], "Next run"],
  [["k"], "Previous run"],
  [["Enter"], "Open the run"],
  [["/"], "Search"],
  [["n"], "Next page"],
  [["p"], "Previous page"],
  [["x"], "Clear search and filters"],
];

class RunList {
  constructor(main, query, data) {
    this.data = data;
    this.query = parameters(query);
    this.asked = 0;
    this.rows = [];
    this.total = 0;
    this.bar = new FilterBar((changes, options) => this.change(changes, options));
    this.status = element("p", { class: "list-status soft" });
    this.pagers = [this.#pager("top"), this.#pager("bottom")];
    this.head = element("thead", {}, this.#head());
    this.caption = element("caption", { class: "unseen" }, "Runs");
    this.table = element("table", { class: "runs" }, this.caption, this.head);
    this.empty = element("div", { class: "empty", hidden: true });
    main.append(element("h1", { class: "unseen" }, "Runs"), this.bar.element,
      element("div", { class: "list-line" }, this.status, this.pagers[0]), this.table, this.empty, this.pagers[1]);
  }

  get offset() {
    return Number(this.query.get("offset")) || 0;
  }

  #head() {
    this.heads = COLUMNS.map((column) => {
      const head = element("th", { scope: "col", class: column.class });
      if (!column.sort) head.append(column.title);
      else head.append(element("button", { type: "button", class: "sort", click: () => this.#sort(column) }, column.title));
      return [column, head];
    });
    return element("tr", {}, this.heads.map(([, head]) => head));
  }

  /** The first click sorts the way that is looked for most; the next one reverses, the third one ends it. */
  #sort({ sort, first = "-" }) {
    const now = this.query.get("sort") ?? "";
    const [one, other] = first === "-" ? [`-${sort}`, sort] : [sort, `-${sort}`];
    this.change({ sort: now === one ? other : now === other ? null : one });
  }

  #pager(place) {
    const step = (by, words, name) => element("button", { type: "button", class: "quiet round", "aria-label": words, title: words, data: { by },
      click: () => this.page(by) }, icon(name));
    return element("nav", { class: `pager ${place}`, "aria-label": place === "top" ? "Pages" : "Pages, below the list", hidden: true },
      step(-1, "Previous page (p)", "before"), element("span", { class: "pager-words" }), step(1, "Next page (n)", "after"));
  }

  page(by) {
    const offset = this.offset + by * LIMIT;
    if (offset < 0 || offset >= this.total) return;
    this.change({ offset: offset || null }, { keep: true }).then(() => {
      scrollTo(0, 0);
      this.links()[0]?.focus({ preventScroll: true });
    });
  }

  /** Sets or removes (null) parameters. `keep` stays at the offset, `typing` makes no entry in the history. */
  change(changes, { keep = false, typing = false } = {}) {
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === "") this.query.delete(name);
      else this.query.set(name, value);
    }
    if (!keep) this.query.delete("offset");
    const text = String(this.query);
    const hash = text ? `#/runs?${text}` : "#/runs";
    history[typing ? "replaceState" : "pushState"](null, "", hash);
    clearTimeout(this.timer);
    if (typing) return new Promise((resolve) => (this.timer = setTimeout(() => resolve(this.load().catch(complain)), PAUSE_MS)));
    return this.load().catch(complain);
  }

  /** Asks for the largest value of each column that no run was seen to have, and shows the columns that there are. */
  async measure() {
    const unknown = COLUMNS.filter((column) => column.when && !found.has(column));
    const before = found.size;
    for (const { rows } of await Promise.all(unknown.map(({ sort }) => this.data.runs({ sort: `-${sort}`, limit: 1 })))) note(rows);
    if (found.size > before) await this.load({ quiet: true });
  }

  async load({ quiet = false } = {}) {
    const number = ++this.asked;
    const query = parameters(this.query);
    query.set("limit", LIMIT);
    this.table.setAttribute("aria-busy", "true");
    try {
      const [index, answer] = await Promise.all([this.data.index(), this.data.runs(query)]);
      if (number !== this.asked) return;
      this.total = answer.total;
      this.draw(index, answer.rows);
      if (!quiet) announce(plural(answer.total, "run"));
    } finally {
      if (number === this.asked) this.table.removeAttribute("aria-busy");
    }
  }

  draw(index, rows) {
    const agents = index.facets.agents;
    note(rows);
    const columns = COLUMNS.filter((column) => !column.when || found.has(column));
    const shown = new Set(columns);
    for (const [column, head] of this.heads) {
      head.hidden = !shown.has(column);
      const [, down, field] = (this.query.get("sort") ?? "").match(/^(-?)(.*)$/);
      if (column.sort && column.sort === field) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    // A row that is the same stays the same element: what has the focus keeps it while runs are added.
    const key = columns.map((column) => column.title).join();
    const known = new Map([...this.table.tBodies].map((row) => [row.dataset.id, row]));
    const hadFocus = this.table.contains(document.activeElement) ? document.activeElement.closest("tbody")?.dataset.id : null;
    this.table.replaceChildren(this.caption, this.head, ...rows.map((row) => {
      const state = key + JSON.stringify(row);
      const old = known.get(row.id);
      if (old?.state === state) return old;
      const made = drawRow(row, columns, agents, () => this.opening(row.id));
      made.state = state;
      return made;
    }));
    if (hadFocus) this.linkOf(hadFocus)?.focus({ preventScroll: true });
    this.rows = rows;
    this.bar.draw(index, this.query);
    this.#words(index);
  }

  #words(index) {
    const filtered = [...this.query.keys()].some((name) => !["sort", "offset"].includes(name));
    const all = index.folders.reduce((sum, folder) => sum + folder.runs, 0);
    this.status.replaceChildren(filtered ? `${plural(this.total, "run")} of ${all.toLocaleString("en")}` : plural(this.total, "run"));
    const [first, last] = [this.offset + 1, Math.min(this.offset + this.rows.length, this.total)];
    for (const pager of this.pagers) {
      pager.hidden = this.total <= LIMIT && this.offset === 0;
      pager.children[1].textContent = `${first.toLocaleString("en")}–${last.toLocaleString("en")} of ${this.total.toLocaleString("en")}`;
      pager.children[0].disabled = this.offset === 0;
      pager.children[2].disabled = last >= this.total;
    }
    this.table.hidden = this.rows.length === 0;
    this.empty.hidden = this.rows.length > 0;
    if (this.rows.length) return;
    this.empty.replaceChildren(element("h2", {}, filtered ? "No run matches." : index.progress.busy ? "The first runs will appear here in a moment." : "There are no runs here."),
      filtered ? element("button", { type: "button", click: () => this.clear() }, "Clear search and filters")
        : element("p", { class: "soft" }, `Looked in ${index.roots.join(", ")}.`));
  }

  clear() {
    const names = [...this.query.keys()].filter((name) => name !== "sort");
    return this.change(Object.fromEntries(names.map((name) => [name, null])));
  }

  opening(id) {
    remember({ query: String(this.query), offset: this.offset, limit: LIMIT, total: this.total, ids: this.rows.map((row) => row.id), at: id });
  }

  // ---- keys

  links() {
    return [...this.table.querySelectorAll("a.run-link")];
  }

  linkOf(id) {
    return this.table.querySelector(`tbody[data-id="${CSS.escape(id)}"] a.run-link`);
  }

  move(by) {
    const links = this.links();
    if (!links.length) return;
    const at = links.indexOf(document.activeElement.closest?.("tbody")?.querySelector("a.run-link"));
    const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + by, 0), links.length - 1)];
    next.focus({ preventScroll: true });
    next.closest("tbody").scrollIntoView({ block: "nearest" });
  }

  open() {
    const row = document.activeElement.closest?.("tbody[data-id]");
    if (!row) return false;
    if (document.activeElement.matches("a")) return false; // the link does it
    this.opening(row.dataset.id);
    location.hash = runAddress(row.dataset.id);
  }

  /** Back in the list, where one left it. */
  restore() {
    const known = trail();
    const link = known?.query === String(this.query) ? this.linkOf(known.at ?? "") : null;
    if (!link) return;
    link.focus({ preventScroll: true });
    link.closest("tbody").scrollIntoView({ block: "center" });
  }
}

function note(rows) {
  for (const column of COLUMNS) if (column.when && rows.some(column.when)) found.add(column);
}

export async function show(main, { query }, data) {
  const list = new RunList(main, query, data);
  await list.load({ quiet: true });
  list.restore();
  list.measure().catch(complain);
  return {
    title: "Runs",
    refresh: () => list.load({ quiet: true }),
    shortcuts: SHORTCUTS,
    keys: {
      j: () => list.move(1),
      k: () => list.move(-1),
      n: () => list.page(1),
      p: () => list.page(-1),
      x: () => list.clear(),
      "/": () => list.bar.focus(),
      Enter: () => list.open(),
    },
    leave: () => (list.asked += 1),
  };
}

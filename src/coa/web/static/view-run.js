// One run: the question, how it ended, its steps as a timeline, its tokens, and the other attempts at the same task.
import { element, icon } from "./dom.js";
import { announce, complain } from "./frame.js";
import { Measures } from "./measures.js";
import { outcomeBadge, runAddress } from "./outcome.js";
import { panels } from "./run-panels.js";
import { block, copyText, linked, plain, prose, visible } from "./text.js";
import { Timeline } from "./timeline.js";
import { listAddress, neighbour, origin, placeOf } from "./trail.js";
import { MODES, TokenOverlay } from "./view-tokens.js";

const PAUSE_MS = 2000;
const ATTEMPTS = 500; // rows of the same task among which a run is looked for

const SHORTCUTS = [
  [["j"], "Next step"],
  [["k"], "Previous step"],
  [["Space"], "Unfold or fold the step"],
  [["o"], "Unfold or fold all steps"],
  [["m"], "Training mask"],
  [["l"], "Logprobs"],
  [["r"], "Raw record and transcript"],
  [["s"], "Save as HTML"],
  [["["], "Previous run of the list"],
  [["]"], "Next run of the list"],
  [["u"], "Back to where you came from"],
];

class RunPage {
  constructor(main, id, query, data) {
    this.main = main;
    this.id = id;
    this.query = query;
    this.data = data;
    this.applied = [];
  }

  async load() {
    this.record = await this.data.run(this.id);
    this.#build();
    this.#apply(this.record);
    await this.#team();
    if (MODES[this.query.get("overlay")]) await this.overlay(this.query.get("overlay"));
    const step = this.query.get("step");
    if (step !== null) this.toStep(Number(step));
  }

  get title() {
    const { row } = this.record;
    return plain(row.question.trim() || row.task, 70);
  }

  // ---- the parts of the page

  #build() {
    const { record } = this;
    this.timeline = new Timeline(record.profile, { tools: (step) => this.#link(step) });
    this.timeline.ribbon.remove();
    this.timeline.head.remove();
    this.measures = new Measures(record.profile, (step) => this.toStep(step));
    this.tokens = new TokenOverlay(this.timeline, record.profile);
    this.raw = element("section", { class: "raw", "aria-label": "Raw", hidden: true });
    this.side = element("aside", { class: "run-side", "aria-label": "About the run" });
    this.steps = element("div", { class: "run-steps" }, this.timeline.element);
    this.main.append(element("article", { class: "run-view", "aria-label": "Run" },
      element("header", { class: "run-header" }, this.#crumbs(), this.#question(), this.#verdict()),
      this.side,
      element("div", { class: "run-main" }, this.#before(), this.#prompt(), this.#toolbar(), this.tokens.legend, this.steps, this.raw)));
    this.timeline.element.addEventListener("focusin", (event) => this.#focused(event.target.closest(".step, .note")));
  }

  #crumbs() {
    const { row } = this.record;
    const place = placeOf(this.id);
    this.neighbours = [["[", -1, "Previous run", "before"], ["]", 1, "Next run", "after"]].map(([key, by, words, sign]) =>
      element("button", { type: "button", class: "quiet round", "aria-label": words, title: `${words} of the list (${key})`, hidden: place === null, click: () => this.next(by) }, icon(sign)));
    return element("nav", { class: "crumbs soft", "aria-label": "Place" },
      element("a", { href: listAddress() }, "Runs"), element("span", { "aria-hidden": "true" }, "›"),
      element("a", { href: `#/folder/${encodeURIComponent(row.folder)}` }, visible(row.path || "·")), element("span", { "aria-hidden": "true" }, "›"),
      element("span", {}, visible(row.task.slice(0, 80)), row.sample ? ` · attempt ${row.sample + 1}` : ""),
      element("span", { class: "grow" }), place ? element("span", { class: "place" }, `${place[0].toLocaleString("en")} of ${place[1].toLocaleString("en")}`) : null, this.neighbours);
  }

  #question() {
    const question = this.record.prompt.length && this.record.row.question.length >= 300 ? this.#whole() : this.record.row.question;
    if (question.length < 260) return element("h1", {}, linked(question.trim() || this.record.row.task));
    return element("div", { class: "long-question" }, element("h1", {}, linked(question.slice(0, 200).trim()), "…"), prose(question));
  }

  /** The list has only the beginning of a long question; the prompt has all of it. */
  #whole() {
    const { row, prompt } = this.record;
    return prompt.findLast((message) => message.role === "user" && message.content.includes(row.question))?.content ?? row.question;
  }

  #verdict() {
    const { row, task } = this.record;
    const expected = task.answer.length ? task.answer.join(" | ") : row.expected;
    return element("div", { class: "verdict" }, outcomeBadge(row.outcome),
      element("dl", {},
        ...(row.answer === null ? [] : [element("div", {}, element("dt", {}, "Answer"), element("dd", {}, visible(row.answer.slice(0, 200))))]),
        ...(expected ? [element("div", {}, element("dt", {}, "Expected"), element("dd", {}, visible(expected.slice(0, 200))))] : [])));
  }

  #before() {
    const { before } = this.record;
    if (!before.length) return null;
    return folded("Earlier in this conversation", messages(before));
  }

  #prompt() {
    const { prompt } = this.record;
    if (!prompt.length) return null;
    const size = prompt.reduce((sum, { content }) => sum + content.length, 0);
    return folded(`Prompt · ${size.toLocaleString("en")} characters`, messages(prompt), "prompt");
  }

  #toolbar() {
    const button = (key, words, title, act, sign = null) => element("button", { type: "button", class: "quiet", title: `${title} (${key})`, click: act }, sign ? icon(sign) : null, words);
    const toggle = (key, words, title, act) => {
      const made = button(key, words, title, act);
      made.setAttribute("aria-pressed", "false");
      return made;
    };
    this.buttons = {
      mask: toggle("m", "Mask", "Which tokens are trained", () => this.overlay("mask").catch(complain)),
      logprobs: toggle("l", "Logprobs", "How probable each sampled token was", () => this.overlay("logprobs").catch(complain)),
      raw: toggle("r", "Raw", "The record as JSON, and the transcript", () => this.toggleRaw().catch(complain)),
    };
    return element("div", { class: "run-tools" }, this.measures.element,
      element("div", { class: "run-buttons", role: "toolbar", "aria-label": "Run" }, Object.values(this.buttons),
        button("o", "Unfold all", "Unfold or fold all steps", () => this.timeline.toggleAll()), button("s", "Save as HTML", "Save this page as one file", () => this.save(), "save")));
  }

  #link(step) {
    const made = element("a", { class: "step-link", href: `#/run/${encodeURIComponent(this.id)}?step=${step}`, "aria-label": `Copy the link to step ${step}`, title: "Copy the link to this step",
      click: (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        this.#address({ step });
        this.#highlight(this.timeline.find(step));
        copyText(made.href, made);
      } }, `#${step}`);
    return made;
  }

  // ---- what happens

  #apply(record) {
    const events = record.running ? record.events.filter((event) => event.type !== "ended") : record.events;
    for (const event of events) this.timeline.apply(event);
    this.applied = events.map((event) => JSON.stringify(event).length);
    this.timeline.element.toggleAttribute("data-long", this.timeline.items.size > 40);
    if (!record.running) this.timeline.violations(record.violations);
    this.#around(record, events);
  }

  #around(record, events) {
    this.measures.draw(events, record.usage);
    this.side.replaceChildren(...panels(record, this.measures.table));
    if (this.timeline.answer && !this.timeline.actions.firstChild) this.timeline.actions.append(this.timeline.copyButton());
  }

  async #team() {
    if (!this.record.team) return;
    const { teamPanel, teamLayout } = await import("./view-team.js");
    this.steps.replaceChildren(teamLayout(teamPanel(this.record.team, { goToStep: (step) => this.toStep(step) }), this.timeline.element));
    this.main.querySelector(".run-view").dataset.team = "";
  }

  /** A run that goes on is drawn further; one that was taken up again differently is drawn anew. Of a run that is over,
   * only the row is asked for: whether its file is still there, and still the same. */
  async refresh() {
    if (!this.record.running) return this.#stale(!(await this.#isAsShown()));
    const record = await this.#next();
    this.#stale(record === null);
    if (record === null) return;
    const events = record.running ? record.events.filter((event) => event.type !== "ended") : record.events;
    const isSame = this.applied.every((size, place) => events[place] && JSON.stringify(events[place]).length === size);
    this.record = record;
    if (!isSame) {
      this.main.replaceChildren();
      this.#build();
      return this.#apply(record);
    }
    for (const event of events.slice(this.applied.length)) this.timeline.apply(event);
    this.applied = events.map((event) => JSON.stringify(event).length);
    if (!record.running) {
      this.timeline.violations(record.violations);
      this.main.querySelector(".verdict").replaceWith(this.#verdict());
      announce("The run ended.");
    }
    this.#around(record, events);
  }

  /** The run as it is now; null if there is none. Between its end and its place in the index there is a short while. */
  async #next() {
    for (const pause of [PAUSE_MS, null]) {
      try {
        return await this.data.run(this.id);
      } catch (error) {
        if (!error.status) throw error; // the connection is lost, not the run
        if (pause !== null) await new Promise((resolve) => setTimeout(resolve, pause));
      }
    }
    return null;
  }

  async #isAsShown() {
    const { row } = this.record;
    const { id, folder, task, sample, step, group } = row;
    const { rows } = await this.data.runs({ folder, task, sample, step, group, limit: ATTEMPTS });
    const found = rows.find((one) => one.id === id);
    if (found) return JSON.stringify(found) === JSON.stringify(row);
    if (this.notice) return false;
    try {
      return JSON.stringify((await this.data.run(id)).row) === JSON.stringify(row);
    } catch (error) {
      if (!error.status) throw error;
      return false;
    }
  }

  /** What is shown stays, with one notice that the file is not like that any more. */
  #stale(isStale) {
    if (isStale === Boolean(this.notice)) return;
    this.notice?.remove();
    this.notice = isStale ? element("p", { class: "stale-notice", role: "alert" }, "The file of this run was deleted or changed.") : null;
    if (isStale) this.main.prepend(this.notice);
    this.main.querySelector(".run-view").toggleAttribute("data-stale", isStale);
  }

  // ---- steps

  cards() {
    return [...this.timeline.steps.querySelectorAll(".step, .note")];
  }

  move(by) {
    const steps = this.cards();
    const at = steps.indexOf(document.activeElement.closest(".step, .note"));
    const next = steps[at < 0 ? (by > 0 ? 0 : steps.length - 1) : Math.min(Math.max(at + by, 0), steps.length - 1)];
    if (!next) return;
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
    if (next.dataset.step !== undefined) this.#address({ step: next.dataset.step });
  }

  toStep(step) {
    const found = this.timeline.find(step);
    if (!found) return;
    this.timeline.go(found, { calm: true });
    this.#highlight(found);
    this.#address({ step });
  }

  #highlight(found) {
    for (const old of this.main.querySelectorAll("[data-target]")) old.removeAttribute("data-target");
    found?.setAttribute("data-target", "");
  }

  #focused(step) {
    if (step) this.measures.mark(step.dataset.step);
  }

  /** What the page shows is in its address, without a new entry in the history. */
  #address(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) this.query.delete(name);
      else this.query.set(name, value);
    }
    const text = String(this.query);
    history.replaceState(null, "", `${runAddress(this.id)}${text ? `?${text}` : ""}`);
  }

  // ---- overlays, raw, saving

  async overlay(mode) {
    const next = this.tokens.mode === mode ? null : mode;
    const view = next === null ? null : (this.tokens.view ?? (await this.data.tokens(this.id)));
    this.tokens.set(next, view ?? null);
    if (view) this.tokens.view = view;
    for (const name of Object.keys(MODES)) this.buttons[name].setAttribute("aria-pressed", String(name === next));
    this.#address({ overlay: next });
    announce(next === null ? "The overlay is off." : MODES[next]);
  }

  async toggleRaw() {
    const open = this.raw.hidden;
    if (open && !this.raw.firstChild) {
      const { json, transcript } = await this.data.raw(this.id);
      this.raw.append(element("h2", {}, "Transcript"), block({ label: "transcript, as the model read and wrote it", text: transcript, tokens: null }),
        element("h2", {}, "Record"), block({ label: "record, as it is in the file", text: json, tokens: null }));
    }
    this.raw.hidden = !open;
    this.buttons.raw.setAttribute("aria-pressed", String(open));
    if (open) this.raw.scrollIntoView({ block: "start" });
  }

  async save() {
    const { savePage } = await import("./saving.js");
    this.tokens.buildAll();
    await savePage(this.main.querySelector(".run-view"), `${this.title} · coa`, `${this.record.row.task || this.id}-${this.id.slice(0, 6)}`);
    announce("The page was saved as one HTML file.");
  }

  async next(by) {
    const found = await neighbour(this.id, by, this.data).catch(complain);
    if (found) location.hash = runAddress(found);
    else announce(by > 0 ? "This is the last run of the list." : "This is the first run of the list.");
  }
}

function folded(words, content, name = "") {
  return element("details", { class: `folded ${name}` }, element("summary", {}, words), element("div", { class: "messages" }, content));
}

function messages(said) {
  return said.map(({ role, content }) => element("div", { class: "said", data: { role } }, element("strong", {}, role), prose(content)));
}

export async function show(main, { path, query }, data) {
  const page = new RunPage(main, path[1] ?? "", query, data);
  await page.load();
  const back = () => (location.hash = origin());
  return {
    get title() {
      return page.title;
    },
    refresh: () => page.refresh(),
    shortcuts: page.record.team ? [...SHORTCUTS, [["t"], "Between the team and its trajectory"]] : SHORTCUTS,
    keys: {
      j: () => page.move(1),
      k: () => page.move(-1),
      o: () => page.timeline.toggleAll(),
      m: () => page.overlay("mask").catch(complain),
      l: () => page.overlay("logprobs").catch(complain),
      r: () => page.toggleRaw().catch(complain),
      s: () => page.save().catch(complain),
      "[": () => page.next(-1),
      "]": () => page.next(1),
      u: back,
      Escape: back,
    },
    leave: () => page.tokens.clear(),
  };
}

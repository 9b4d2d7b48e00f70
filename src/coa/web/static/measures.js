// How long the steps of a run are, in tokens and in time: a strip with one segment for each step, and bars per agent.
import { element } from "./dom.js";
import { duration, plain, plural, short } from "./text.js";
import { agentOf } from "./timeline.js";

/** What the events of a run say about the size of each step. */
function sizes(events) {
  const steps = new Map(); // items
  const notes = [];
  for (const event of events) {
    if (event.type === "began") steps.set(event.item, { item: event.item, step: event.step ?? null, tag: event.agent, tokens: null, seconds: null, length: 0, failed: false });
    const step = steps.get(event.item);
    if (event.type === "done" && step) Object.assign(step, { tokens: event.tokens, seconds: event.seconds, length: event.text.length });
    if (event.type === "result" && step) Object.assign(step, { waited: event.seconds, returned: event.block.text.length, failed: !event.ok });
    if (event.type === "note") notes.push(event);
  }
  return [...steps.values()];
}

export class Measures {
  /** `go` is called with the index of a step. */
  constructor(profile, go) {
    this.profile = profile;
    this.go = go;
    this.mode = "tokens";
    this.strip = element("div", { class: "strip", "aria-hidden": "true" });
    this.modes = element("div", { class: "segmented", role: "group", "aria-label": "Width of the steps in the strip" });
    this.element = element("div", { class: "measures" }, this.strip, this.modes);
    this.table = element("table", { class: "agent-bars" });
  }

  draw(events, usage) {
    this.steps = sizes(events);
    this.#share(usage.seconds);
    const known = { tokens: this.steps.some((step) => step.tokens), time: this.steps.some((step) => step.time) };
    this.offered = [known.tokens ? ["tokens", "Tokens", "As many tokens as the model wrote in the step"] : ["length", "Length", "As many characters as the model wrote in the step; its tokens were not counted"]];
    if (known.time) this.offered.push(["time", "Time", this.estimated ? "The time of tools as measured; the time of the model is divided by what it wrote" : "As measured"]);
    if (!this.offered.some(([mode]) => mode === this.mode)) this.mode = this.offered[0][0];
    this.#modes();
    this.#strip();
    this.#table();
  }

  /** The time of a call is measured. What is left of the run's time is the model's, and divided by what it wrote. */
  #share(total) {
    const measured = this.steps.reduce((sum, step) => sum + (step.waited ?? 0) + (step.seconds ?? 0), 0);
    const open = this.steps.filter((step) => step.seconds === null);
    const weight = (step) => step.tokens ?? step.length / 4;
    const whole = open.reduce((sum, step) => sum + weight(step), 0);
    const left = Math.max(total - measured, 0);
    this.estimated = open.length > 0 && left > 0;
    for (const step of this.steps) {
      const wrote = step.seconds ?? (whole > 0 && total > 0 ? (left * weight(step)) / whole : 0);
      step.time = wrote + (step.waited ?? 0);
    }
  }

  #modes() {
    this.modes.hidden = this.steps.length === 0;
    this.modes.replaceChildren(...this.offered.map(([mode, words, title]) => element("button", { type: "button", title, "aria-pressed": String(mode === this.mode),
      click: () => {
        this.mode = mode;
        this.#modes();
        this.#strip();
      } }, words)));
  }

  #strip() {
    this.strip.replaceChildren(...this.steps.map((step) => {
      const agent = agentOf(this.profile, step.tag);
      const words = [`Step ${step.step ?? step.item}: ${plain(agent.title, 60)}`, step.tokens ? plural(step.tokens, "token") : null,
        step.waited ? `waited ${duration(step.waited)}` : null].filter((part) => part).join(" · ");
      const segment = element("span", { data: { hue: agent.hue, kind: agent.kind, at: step.step ?? "" }, title: words, click: () => this.go(step.step) });
      if (step.failed) segment.dataset.failed = "";
      segment.style.setProperty("flex-grow", Math.max(this.mode === "time" ? step.time : (step[this.mode] ?? 0), 0.0001));
      return segment;
    }));
    this.strip.toggleAttribute("data-many", this.steps.length > 120);
  }

  /** Marks the step that has the focus. */
  mark(step) {
    for (const segment of this.strip.children) segment.toggleAttribute("data-current", segment.dataset.at === String(step));
  }

  #table() {
    const rows = new Map();
    for (const step of this.steps) {
      const agent = agentOf(this.profile, step.tag);
      const row = rows.get(agent.title) ?? { agent, steps: 0, tokens: 0, length: 0, time: 0 };
      row.steps += 1;
      row.tokens += step.tokens ?? 0;
      row.length += step.length;
      row.time += step.time;
      rows.set(agent.title, row);
    }
    const size = this.offered[0][0];
    const all = [...rows.values()];
    const most = { size: Math.max(...all.map((row) => row[size]), 1e-9), time: Math.max(...all.map((row) => row.time), 1e-9) };
    const timed = this.offered.some(([mode]) => mode === "time");
    const titles = ["Agent", "Steps", this.offered[0][1], ...(timed ? ["Time"] : [])];
    this.table.replaceChildren(element("caption", { class: "unseen" }, "Agents"), element("thead", {}, element("tr", {}, titles.map((title) => element("th", { scope: "col" }, title)))),
      element("tbody", {}, all.map((row) => element("tr", { data: { hue: row.agent.hue } },
        element("th", { scope: "row" }, element("span", { class: "dot" }), plain(row.agent.title, 40)), element("td", { class: "c-number" }, String(row.steps)),
        element("td", {}, bar(row[size] / most.size, short(row[size]))),
        timed ? element("td", {}, bar(row.time / most.time, (this.estimated ? "≈ " : "") + (row.time ? duration(row.time) : "0 s"))) : null))));
    this.table.title = this.estimated ? "≈ the time of the model, divided by what it wrote" : "";
  }
}

function bar(share, words) {
  const filled = element("span", { class: "bar-fill" });
  filled.style.setProperty("width", `${Math.max(share * 100, 0.5)}%`);
  return element("span", { class: "bar" }, element("span", { class: "bar-track" }, filled), element("span", { class: "bar-words" }, words));
}

// One question of a conversation: the question, the timeline of its run, and what one can do with it.
import { follow, hasKey } from "./api.js";
import { showPrograms } from "./dialogs.js";
import { element, icon } from "./dom.js";
import { announce } from "./frame.js";
import { asCurl, asPython } from "./programs.js";
import { linked } from "./text.js";
import { Timeline } from "./timeline.js";

export class Turn {
  /** `record` is {run, events, next} of the API; `earlier` returns the turns before this one. */
  constructor(record, earlier) {
    this.run = record.run;
    this.next = record.next;
    this.earlier = earlier;
    this.lost = false; // whether the connection to the run is lost
    this.timeline = new Timeline(this.run.profile, { announce: record.events.length ? () => {} : announce });
    this.element = element("article", { class: "turn", "aria-label": `Question: ${this.run.question.slice(0, 80)}` },
      element("div", { class: "question" }, element("p", {}, linked(this.run.question))), this.timeline.element);
    for (const event of record.events) this.timeline.apply(event);
    this.timeline.announce = announce;
    if (this.over) this.#offer();
  }

  get over() {
    return this.timeline.ended !== null;
  }

  /** Seconds since it began, by the server's clock. */
  get elapsed() {
    this.origin ??= performance.now() / 1000 - this.run.elapsed;
    return performance.now() / 1000 - this.origin;
  }

  /** Draws what happens from now on; `onChange` is called after each batch. Ends with the run. */
  async watch(signal, onChange) {
    let usage = this.run.usage;
    const tick = setInterval(() => this.timeline.usage(usage, this.elapsed), 200);
    this.timeline.usage(usage, this.elapsed);
    try {
      for await (const batch of follow(this.run.id, this.next, signal, (lost) => (this.lost = lost))) {
        usage = batch.usage;
        this.next = batch.next;
        for (const event of batch.events) this.timeline.apply(event);
        onChange();
      }
    } finally {
      clearInterval(tick);
    }
    if (this.over) this.#offer();
  }

  #offer() {
    const path = `/runs/${encodeURIComponent(this.run.id)}`;
    const code = element("button", { type: "button", class: "quiet", click: () => this.#programs() }, icon("code"), "Use in code");
    const whole = element("a", { class: "button quiet", href: path }, icon("open"), "Open run");
    this.timeline.actions.replaceChildren(...(this.timeline.answer ? [this.timeline.copyButton()] : []), code, whole);
  }

  #programs() {
    const { agent, question } = this.run;
    const turns = this.earlier().filter((turn) => turn.timeline.answer).map((turn) => [turn.run.question, turn.timeline.answer]);
    const key = hasKey();
    const programs = [["curl", asCurl(agent, question, turns, key)], ["Python", asPython(agent, question, turns, key)]];
    showPrograms(programs, key ? "Both read the key from the environment variable COA_SERVE_KEY." : "");
  }
}

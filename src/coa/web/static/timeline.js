// The timeline: one run, drawn from the events that coa/web/timeline.py describes, live or from a file.
import { element, icon } from "./dom.js";
import { block, copyText, duration, link, paragraphs, plural, prose } from "./text.js";

/** An agent that the profile does not know still has a name. */
function agentOf(profile, tag) {
  return profile.agents[tag] ?? { title: tag, kind: "role", hue: "gray", does: "" };
}

/** The agents of the profile, by their titles. The one that acts is lit. */
class Cast {
  constructor(profile) {
    this.chips = new Map();
    this.element = element("ul", { class: "cast", "aria-label": "Agents" });
    for (const tag of Object.keys(profile.agents)) this.#chip(agentOf(profile, tag));
  }

  #chip({ title, hue, does }) {
    let chip = this.chips.get(title);
    if (!chip) {
      const count = element("span", { class: "count" });
      const made = element("li", { class: "chip", data: { hue, state: "idle" }, title: does },
        element("span", { class: "dot" }), title, count);
      chip = { element: made, count, acted: 0 };
      this.chips.set(title, chip);
      this.element.append(made);
    }
    return chip;
  }

  acts(agent) {
    this.rest();
    const chip = this.#chip(agent);
    chip.acted += 1;
    chip.count.textContent = chip.acted > 1 ? String(chip.acted) : "";
    chip.element.dataset.state = "acting";
  }

  rest() {
    for (const { element: chip, acted } of this.chips.values()) chip.dataset.state = acted ? "acted" : "idle";
  }
}

/** One activation of one agent. */
class Step {
  /** `shared`: other agents have the same title, so the tag is shown too. */
  constructor(number, agent, tag, shared) {
    this.agent = agent;
    this.written = "";
    this.badges = element("span", { class: "badges" });
    this.body = element("div", { class: "step-body" });
    this.element = element("li", { class: "step", tabindex: "-1", id: `step-${number}`,
      data: { hue: agent.hue, kind: agent.kind, state: "acting" }, "aria-label": `Step ${number + 1}: ${agent.title}` },
      element("span", { class: "node" }), this.body);
    this.title = element("span", { class: "title", title: `<${tag}> ${agent.does}` }, agent.title,
      shared ? element("span", { class: "tag" }, tag.replaceAll("_", " ")) : null);
    if (agent.kind === "tool") this.#tool();
    else this.#words();
  }

  #words() {
    this.live = element("p", { class: "live" });
    this.body.append(element("h3", {}, this.title, this.badges), this.live);
  }

  #tool() {
    this.line = element("code", { class: "line" });
    this.blocks = element("div", { class: "blocks" });
    this.peek = element("p", { class: "peek" });
    this.details = element("details", {},
      element("summary", {}, this.title, this.line, this.badges, icon("fold")), this.blocks);
    this.body.append(this.details, this.peek);
  }

  writes(text) {
    this.written += text;
    (this.line ?? this.live).append(text);
  }

  done({ text, summary, blocks, passed, repairs }) {
    this.text = text;
    this.element.dataset.state = this.line ? "waiting" : "done";
    if (this.line) {
      this.line.replaceChildren(summary);
      this.blocks.replaceChildren(...blocks.map(block));
      this.badges.replaceChildren(element("span", { class: "spinner" }));
    } else {
      this.live.replaceWith(this.agent.kind === "answer" ? element("div", { class: "answer" }, paragraphs(text)) : prose(text));
    }
    if (passed !== null) {
      this.badges.append(element("span", { class: `badge ${passed ? "good" : "bad"}` },
        icon(passed ? "check" : "cross"), passed ? "passed" : "not passed"));
    }
    if (repairs.length) {
      this.badges.append(element("span", { class: "badge", title: `The format was repaired: ${repairs.join(", ")}` }, "repaired"));
    }
  }

  returned({ ok, seconds, block: result }) {
    this.element.dataset.state = "done";
    this.badges.replaceChildren(
      ...(ok ? [] : [element("span", { class: "badge bad" }, "failed")]),
      ...(seconds === null ? [] : [element("span", { class: "time" }, duration(seconds))]));
    const lines = result.text.split("\n").map((line) => line.trim()).filter((line) => line);
    const heading = lines.length > 1 && lines[0].endsWith(":") ? 1 : 0;
    this.peek.replaceChildren(lines.slice(heading, heading + 6).join(" · ").slice(0, 240) || "nothing");
    this.badges.prepend(...(lines.length > 1 ? [element("span", { class: "time" }, plural(lines.length, "line"))] : []));
    this.blocks.append(block(result));
  }

  /** The run is over: nothing moves any more. */
  settle() {
    if (this.element.dataset.state === "done") return;
    this.element.dataset.state = "done";
    if (this.line) this.badges.replaceChildren(element("span", { class: "badge" }, "not finished"));
  }
}

export class Timeline {
  /** `announce` gets short sentences for screen readers. */
  constructor(profile, { announce = () => {} } = {}) {
    this.profile = profile;
    this.announce = announce;
    this.cast = new Cast(profile);
    this.ribbon = element("div", { class: "ribbon", "aria-hidden": "true" });
    this.steps = element("ol", { class: "steps" });
    this.outcome = element("div", { class: "outcome", hidden: true });
    this.facts = element("span", { class: "facts" });
    this.actions = element("span", { class: "actions" });
    this.fold = element("button", { type: "button", class: "quiet fold", "aria-expanded": "true",
      click: () => this.setFolded(!this.folded) }, element("span", { class: "fold-words" }, "Steps"), icon("fold"));
    this.element = element("section", { class: "run", "aria-label": "Run", data: { state: "running" } },
      element("header", { class: "run-head" }, this.cast.element, this.fold),
      this.ribbon, this.steps, this.outcome,
      element("footer", { class: "run-foot" }, this.facts, this.actions));
    this.items = new Map();
    this.ended = null;
    this.answer = "";
  }

  get folded() {
    return this.element.hasAttribute("data-folded");
  }

  setFolded(folded) {
    this.element.toggleAttribute("data-folded", folded);
    this.fold.setAttribute("aria-expanded", String(!folded));
    this.#count();
  }

  #count() {
    const words = plural(this.items.size, "step");
    this.fold.firstChild.textContent = this.folded ? `Show ${words}` : words;
  }

  apply(event) {
    switch (event.type) {
      case "began": return this.#began(event);
      case "text": return this.items.get(event.item)?.writes(event.text);
      case "done": return this.#done(event);
      case "result": return this.items.get(event.item)?.returned(event);
      case "note": return void this.steps.append(element("li", { class: "note" },
        element("span", { class: "node" }), element("p", {}, event.text)));
      case "ended": return this.#ended(event);
    }
  }

  #began({ item, agent: tag }) {
    const agent = agentOf(this.profile, tag);
    const shared = Object.values(this.profile.agents).filter(({ title }) => title === agent.title).length > 1;
    const step = new Step(item, agent, tag, shared);
    this.items.set(item, step);
    this.steps.append(step.element);
    this.ribbon.append(element("span", { data: { hue: agent.hue, kind: agent.kind }, title: agent.title,
      click: () => this.go(step.element) }));
    this.cast.acts(agent);
    this.#count();
  }

  #done(event) {
    const step = this.items.get(event.item);
    if (!step) return;
    step.done(event);
    if (step.agent.kind === "answer") this.answer = event.text;
    else this.announce(step.line ? `${step.agent.title}: ${event.summary}` : step.agent.title);
  }

  #ended(event) {
    this.ended = event;
    this.cast.rest();
    for (const step of this.items.values()) step.settle();
    const answered = event.answer !== null;
    this.element.dataset.state = event.stop === "failed" ? "failed" : answered ? "answered" : "stopped";
    if (answered) this.answer = event.answer;
    if (event.stop !== "answered") {
      this.outcome.hidden = false;
      const words = event.stop === "interrupted" ? "The run was stopped." : sentence(event.words);
      this.outcome.replaceChildren(element("strong", {}, words), event.failure ? ` ${sentence(event.failure)}` : "");
    }
    if (event.sources.length) this.#sources(event.sources);
    this.usage(event.usage, event.usage.seconds);
    this.announce(answered ? `Answer: ${this.answer}` : "The run ended without an answer.");
  }

  #sources(sources) {
    const list = element("ol", { class: "sources", "aria-label": "Sources" }, sources.map(({ url, title }) =>
      element("li", {}, link(url, icon("link"), element("span", {}, title === url ? host(url) : title)))));
    const answer = [...this.items.values()].findLast((step) => step.agent.kind === "answer");
    (answer ? answer.body : this.outcome).append(list);
  }

  /** Counters, while it runs and at the end. */
  usage(usage, seconds) {
    const facts = [
      duration(seconds),
      usage.completion_tokens ? `${plural(usage.completion_tokens, "token")} written` : null,
      usage.prompt_tokens ? `${usage.prompt_tokens.toLocaleString("en")} read` : null,
      usage.tool_calls ? plural(usage.tool_calls, "tool call") : null,
      usage.cost === null ? null : `cost ${usage.cost.toPrecision(2)}`,
    ];
    this.facts.replaceChildren(...facts.filter((fact) => fact !== null).map((fact) => element("span", {}, fact)));
  }

  /** Moves to a step, for the keys and the ribbon. */
  go(step) {
    if (this.folded) this.setFolded(false);
    step.focus({ preventScroll: true });
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    step.scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
  }

  copyButton() {
    const button = element("button", { type: "button", class: "quiet", click: () => copyText(this.answer, button) },
      icon("copy"), "Copy answer");
    return button;
  }
}

function sentence(text) {
  const end = /[.!?]$/.test(text) ? "" : ".";
  return text ? text[0].toUpperCase() + text.slice(1) + end : "";
}

function host(url) {
  try {
    const { hostname, pathname } = new URL(url);
    return hostname + (pathname === "/" ? "" : pathname);
  } catch {
    return url;
  }
}

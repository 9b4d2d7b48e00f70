// The timeline: one run, drawn from the events that coa/web/timeline.py describes, live or from a file.
import { element, icon } from "./dom.js";
import { block, copyText, duration, link, linked, plain, plural, prose, short, visible } from "./text.js";

/** An agent that the profile does not know still has a name. */
export function agentOf(profile, tag) {
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
      const made = element("li", { class: "chip", data: { hue, state: "idle" }, title: plain(does) },
        element("span", { class: "dot" }), plain(title, 60), count);
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

function badge(words, kind = "", title = null) {
  return element("span", { class: `badge ${kind}`, title }, words);
}

/** A line below a step: something that the runtime or a check has to say about it. */
function remark(kind, ...children) {
  return element("p", { class: "remark", data: { kind } }, ...children);
}

/** One activation of one agent. */
class Step {
  /** `shared`: other agents have the same title, so the tag is shown too. `tools` makes what is offered for a step. */
  constructor(item, step, agent, tag, shared, tools) {
    this.agent = agent;
    this.tag = tag;
    this.index = step;
    this.result = null; // index of the step with its result
    this.written = "";
    this.badges = element("span", { class: "badges" });
    this.body = element("div", { class: "step-body" });
    this.remarks = element("div", { class: "remarks" });
    this.element = element("li", { class: "step", tabindex: "-1", data: { hue: agent.hue, kind: agent.kind, state: "acting" },
      "aria-label": `Step ${step ?? item}: ${plain(agent.title, 60)}` }, element("span", { class: "node" }), this.body);
    if (step !== null) this.element.dataset.step = step;
    this.title = element("span", { class: "title", title: plain(`<${tag}> ${agent.does}`) }, plain(agent.title, 60),
      shared ? element("span", { class: "tag" }, plain(tag.replaceAll("_", " "), 60)) : null);
    const offered = step === null ? null : tools(step);
    if (offered) this.element.append(offered);
    if (agent.kind === "tool") this.#tool();
    else this.#words();
  }

  #words() {
    this.live = element("p", { class: "live" });
    this.body.append(element("h3", {}, this.title, this.badges), this.live, this.remarks);
  }

  #tool() {
    this.line = element("code", { class: "line" });
    this.blocks = element("div", { class: "blocks" });
    this.peek = element("p", { class: "peek" });
    this.details = element("details", {},
      element("summary", {}, this.title, this.line, this.badges, icon("fold")), this.blocks);
    this.body.append(this.details, this.peek, this.remarks);
  }

  writes(text) {
    this.written += text;
    (this.line ?? this.live).append(...visible(text));
  }

  done({ text, parts, summary, blocks, passed, repairs, author, by, given, note, tokens }) {
    this.text = text;
    this.tokens = tokens;
    this.element.dataset.state = this.line ? "waiting" : "done";
    if (this.line) {
      this.line.replaceChildren(...visible(summary));
      this.blocks.replaceChildren(...blocks.map(block));
      this.badges.replaceChildren(element("span", { class: "spinner" }));
    } else {
      const words = prose(text, parts);
      if (this.agent.kind === "answer") words.classList.replace("prose", "answer");
      this.live.replaceWith(words);
    }
    if (by) this.title.append(element("span", { class: "tag" }, visible(by.slice(0, 80))));
    this.said = [];
    if (passed !== null) {
      this.said.push(element("span", { class: `badge ${passed ? "good" : "bad"}` },
        icon(passed ? "check" : "cross"), passed ? "passed" : "not passed"));
    }
    if (repairs.length) this.said.push(badge(plural(repairs.length, "repair"), "warn", "The format was repaired."));
    if (author === "environment") this.said.push(badge("written by the runtime"));
    if (tokens !== null) this.said.push(element("span", { class: "time token-count" }, plural(tokens, "token")));
    this.badges.append(...this.said);
    if (given) this.remarks.append(remark("given", "The runtime wrote the beginning: ", element("code", {}, visible(given.slice(0, 300)))));
    if (note) this.remarks.append(remark("note", ...visible(note)));
    for (const { kind, detail } of repairs) {
      this.remarks.append(remark("repair", element("strong", {}, `Repaired: ${kind}`), ...(detail ? [" ", element("code", {}, visible(detail.slice(0, 500)))] : [])));
    }
  }

  returned({ step, ok, error, seconds, omitted, block: result, found, pages }) {
    this.result = step;
    this.element.dataset.state = "done";
    if (!ok) this.element.dataset.failed = "";
    const lines = result.text.slice(0, 20_000).split("\n").map((line) => line.trim()).filter((line) => line);
    const count = result.text.length > 20_000 ? null : lines.length;
    this.badges.replaceChildren(...[
      ok ? null : badge(error ? `failed: ${plain(error.replaceAll("_", " "), 40)}` : "failed", "bad"),
      omitted ? badge("shortened", "warn", `${plural(omitted, "character")} cut out`) : null,
      count === null ? element("span", { class: "time" }, `${short(result.text.length)} characters`)
        : count > 1 ? element("span", { class: "time" }, plural(count, "line")) : null,
      seconds === null ? null : element("span", { class: "time" }, duration(seconds)),
    ].filter((part) => part), ...(this.said ?? []));
    const heading = lines.length > 1 && lines[0].endsWith(":") ? 1 : 0;
    this.peek.replaceChildren(...visible(lines.slice(heading, heading + 6).join(" · ").slice(0, 240) || "nothing"));
    const shown = element("div", { class: "result" });
    if (step !== null) shown.dataset.step = step;
    if (found) shown.append(resultList(found));
    const opened = pages.filter(({ url }) => url);
    if (opened.length && !found) shown.append(pageList(opened));
    shown.append(found ? element("details", { class: "as-text" }, element("summary", {}, "The result as text"), block(result)) : block(result));
    this.blocks.append(shown);
  }

  violated({ rule, message }) {
    this.badges.append(badge("violation", "bad", `The order or form of the profile was violated: ${rule}`));
    this.remarks.append(remark("violation", element("strong", {}, sentence(rule.replaceAll("_", " "))), ` ${message}`));
  }

  /** The run is over: nothing moves any more. */
  settle() {
    if (this.element.dataset.state === "done") return;
    this.element.dataset.state = "done";
    if (this.line) this.badges.replaceChildren(badge("not finished"));
  }
}

/** Results of a search: title, address, snippet. */
function resultList(groups) {
  return element("div", { class: "found" }, groups.flatMap(({ heading, results }) => [
    element("p", { class: "found-head" }, visible(heading)),
    element("ol", {}, results.map(({ title, url, text, date }) => element("li", {},
      element("span", { class: "found-title" }, url ? link(url, ...visible(title)) : visible(title), date ? element("span", { class: "time" }, visible(date)) : null),
      url && url !== title ? element("span", { class: "found-address" }, visible(address(url))) : null,
      text ? element("span", { class: "found-text" }, visible(text.slice(0, 2000))) : null))),
  ]));
}

function pageList(pages) {
  return element("ul", { class: "pages", "aria-label": "Pages" }, pages.slice(0, 50).map(({ url, error }) =>
    element("li", { data: { state: error ? "failed" : "opened" } }, link(url, icon("link"), ...visible(url.slice(0, 300))),
      error ? element("span", { class: "soft" }, visible(error.slice(0, 200))) : null)));
}

export class Timeline {
  /** `announce` gets short sentences for screen readers. `tools` makes what is offered for a step, such as its link. */
  constructor(profile, { announce = () => {}, tools = () => null } = {}) {
    this.profile = profile;
    this.announce = announce;
    this.tools = tools;
    this.cast = new Cast(profile);
    this.ribbon = element("div", { class: "ribbon", "aria-hidden": "true" });
    this.steps = element("ol", { class: "steps" });
    this.outcome = element("div", { class: "outcome", hidden: true });
    this.facts = element("span", { class: "facts" });
    this.actions = element("span", { class: "actions" });
    this.fold = element("button", { type: "button", class: "quiet fold", "aria-expanded": "true",
      click: () => this.setFolded(!this.folded) }, element("span", { class: "fold-words" }, "Steps"), icon("fold"));
    this.head = element("header", { class: "run-head" }, this.cast.element, this.fold);
    this.element = element("section", { class: "run", "aria-label": "Run", data: { state: "running" } },
      this.head, this.ribbon, this.steps, this.outcome,
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
      case "note": return this.#note(event);
      case "ended": return this.#ended(event);
    }
  }

  #began({ item, agent: tag, step: index = null }) {
    const agent = agentOf(this.profile, tag);
    const shared = Object.values(this.profile.agents).filter(({ title }) => title === agent.title).length > 1;
    const step = new Step(item, index, agent, tag, shared, this.tools);
    this.items.set(item, step);
    this.steps.append(step.element);
    this.ribbon.append(element("span", { data: { hue: agent.hue, kind: agent.kind }, title: plain(agent.title, 60),
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

  #note({ step = null, text, error }) {
    const made = element("li", { class: "note", tabindex: "-1", "aria-label": "Note of the runtime" }, element("span", { class: "node" }),
      element("div", {}, element("p", { class: "note-head" }, "Runtime", error ? badge(plain(error.replaceAll("_", " "), 40)) : null),
        prose(text)));
    if (step !== null) {
      made.dataset.step = step;
      const offered = this.tools(step);
      if (offered) made.append(offered);
    }
    this.steps.append(made);
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
      this.outcome.replaceChildren(element("strong", {}, words), ...(event.failure ? [" ", ...linked(sentence(event.failure))] : []));
    }
    if (event.sources.length) this.#sources(event.sources);
    this.usage(event.usage, event.usage.seconds);
    this.announce(answered ? `Answer: ${this.answer}` : "The run ended without an answer.");
  }

  #sources(sources) {
    const list = element("ol", { class: "sources", "aria-label": "Sources" }, sources.map(({ url, title }) =>
      element("li", {}, link(url, icon("link"), element("span", {}, visible(title === url ? address(url) : title))))));
    const answer = [...this.items.values()].findLast((step) => step.agent.kind === "answer");
    if (answer) answer.remarks.before(list);
    else this.outcome.append(list);
  }

  /** Rules of the profile that steps broke, each where it happened; what is missing at the end is said there. */
  violations(found) {
    for (const violation of found) {
      const step = [...this.items.values()].find(({ index, result }) => index === violation.step || result === violation.step);
      if (step) step.violated(violation);
      else this.steps.after(element("p", { class: "remark at-end", data: { kind: "violation" } },
        element("strong", {}, sentence(violation.rule.replaceAll("_", " "))), ` ${violation.message}`));
    }
  }

  /** Counters, while it runs and at the end. */
  usage(usage, seconds) {
    const facts = [
      seconds ? duration(seconds) : null,
      usage.completion_tokens ? `${plural(usage.completion_tokens, "token")} written` : null,
      usage.prompt_tokens ? `${usage.prompt_tokens.toLocaleString("en")} read` : null,
      usage.tool_calls ? plural(usage.tool_calls, "tool call") : null,
      usage.cost === null ? null : `cost ${usage.cost.toPrecision(2)}`,
    ];
    this.facts.replaceChildren(...facts.filter((fact) => fact !== null).map((fact) => element("span", {}, fact)));
  }

  /** The element of a step of the trajectory: an item, a result inside one, or a note. */
  find(step) {
    return this.element.querySelector(`[data-step="${Number(step)}"]`);
  }

  /** Moves to a step, for the keys, the ribbon and links. */
  go(target, { calm = matchMedia("(prefers-reduced-motion: reduce)").matches } = {}) {
    if (this.folded) this.setFolded(false);
    const step = target.closest(".step, .note");
    if (target !== step) step.querySelector("details").open = true;
    step.focus({ preventScroll: true });
    target.scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
  }

  /** Unfolds all steps, or folds them if all are unfolded. */
  toggleAll() {
    const folds = [...this.steps.querySelectorAll("details")].filter((fold) => !fold.matches(".as-text, .as-text details"));
    const open = folds.some((fold) => !fold.open);
    for (const fold of folds) fold.open = open;
    return open;
  }

  copyButton() {
    const button = element("button", { type: "button", class: "quiet", click: () => copyText(this.answer, button) },
      icon("copy"), "Copy answer");
    return button;
  }
}

export function sentence(text) {
  const end = /[.!?]$/.test(text) ? "" : ".";
  return text ? text[0].toUpperCase() + text.slice(1) + end : "";
}

function address(url) {
  try {
    const { hostname, pathname } = new URL(url);
    return hostname + (pathname === "/" ? "" : pathname);
  } catch {
    return url;
  }
}

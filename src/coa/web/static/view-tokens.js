// The overlay: the tokens of a run, which of them are trained, and how probable each was when it was sampled. Tokens of
// a step become elements when the step comes into view.
import { element } from "./dom.js";
import { announce } from "./frame.js";
import { restOf } from "./pieces.js";
import { plain, plural, visible } from "./text.js";
import { agentOf } from "./timeline.js";

const SHOWN = 160; // tokens of a text that is not trained, such as a page that a tool returned; the rest is folded
const PIECE = 1500;
const SCALE = [[0.9, "≥ 90 %"], [0.5, "50–90 %"], [0.2, "20–50 %"], [0.05, "5–20 %"], [0.01, "1–5 %"], [0, "< 1 %"]];

export const MODES = { mask: "Training mask", logprobs: "Logprobs" };

export class TokenOverlay {
  /** `timeline` is the one whose steps are covered. */
  constructor(timeline, profile) {
    this.timeline = timeline;
    this.profile = profile;
    this.mode = null;
    this.view = null;
    this.legend = element("div", { class: "overlay-legend", hidden: true });
    this.tip = element("div", { class: "token-tip", role: "tooltip", id: "token-tip", hidden: true });
    this.boxes = [];
    this.watcher = new IntersectionObserver((seen) => {
      for (const { isIntersecting, target } of seen) {
        if (!isIntersecting) continue;
        this.watcher.unobserve(target);
        target.build();
      }
    }, { rootMargin: "400px" });
  }

  /** `view` is the answer of tokens.json, or null where the overlay ends. */
  set(mode, view) {
    this.clear();
    this.mode = mode;
    this.view = view;
    if (mode === null) return;
    this.timeline.element.dataset.overlay = mode;
    this.#legend();
    const bySteps = Map.groupBy(view.spans, (span) => span.step);
    for (const [step, spans] of bySteps) this.#cover(step, spans);
    document.body.append(this.tip);
  }

  /** Also the tokens of steps that are not in view, before the page is saved. */
  buildAll() {
    this.watcher.disconnect();
    for (const box of this.boxes) box.build();
  }

  clear() {
    this.watcher.disconnect();
    for (const box of this.boxes) box.remove();
    this.boxes = [];
    this.tip.remove();
    this.legend.hidden = true;
    delete this.timeline.element.dataset.overlay;
  }

  #cover(step, spans) {
    const place = step < 0 ? null : this.timeline.find(step);
    const host = step < 0 ? this.timeline.steps : place?.closest(".step, .note");
    if (!host) return;
    const agent = step < 0 ? { hue: "gray", title: "Prompt" } : agentOf(this.profile, spans[0].agent);
    const isTrained = spans.some((span) => span.tokens.some((token) => token[2]));
    const words = step < 0 ? "Prompt" : isTrained ? null : host.matches(".note") ? null : "Result, not trained";
    const box = element("div", { class: "tokens", data: { hue: agent.hue } });
    const runs = element("div", { class: "token-run", tabindex: "0", role: "group", "aria-label": `Tokens of ${step < 0 ? "the prompt" : `step ${step}`}`,
      mouseover: (event) => this.#point(event.target), mouseleave: () => this.#point(null), focusout: () => this.#point(null),
      keydown: (event) => this.#walk(event, runs) });
    if (words) box.append(element("p", { class: "tokens-head" }, words, ` · ${plural(spans.reduce((sum, span) => sum + span.tokens.length, 0), "token")}`));
    box.append(runs);
    box.build = () => runs.firstChild ?? this.#build(runs, spans.flatMap((span) => span.tokens));
    if (step < 0) host.before(box);
    else (host.querySelector(".step-body") ?? host.lastElementChild).append(box);
    this.boxes.push(box);
    this.watcher.observe(box);
  }

  #build(runs, tokens) {
    const draw = (from, to) => tokens.slice(from, to).map((token, place) => this.#token(token, from + place));
    // A text in which nothing is trained may be a long page: its beginning is enough until somebody asks for it.
    const first = tokens.some((token) => token[2]) ? tokens.length : Math.min(SHOWN, tokens.length);
    for (let at = 0; at < first; at += PIECE) {
      runs.append(element("span", { class: first > PIECE ? "piece" : "" }, draw(at, Math.min(at + PIECE, first))));
    }
    if (first < tokens.length) {
      runs.append(restOf(tokens.length, first, (at) => Math.min(at + PIECE, tokens.length), draw, plural(tokens.length - first, "more token")));
    }
  }

  #token([text, id, trained, logprob], place) {
    const made = element("span", { class: "tk", data: { trained, odd: place % 2 } }, visible(text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t")));
    if (id !== null) made.dataset.id = id;
    if (logprob !== null) {
      made.dataset.logprob = logprob;
      made.dataset.level = SCALE.findIndex(([least]) => Math.exp(logprob) >= least);
    }
    return made;
  }

  // ---- what a token is

  #point(target) {
    const token = target?.closest?.(".tk") ?? null;
    this.pointed?.removeAttribute("data-pointed");
    this.pointed = token;
    this.tip.hidden = token === null;
    if (!token) return;
    token.dataset.pointed = "";
    this.tip.replaceChildren(...facts(token).map(([name, value]) => element("span", {}, element("b", {}, name), ` ${value}`)));
    const at = token.getClientRects()[0] ?? token.getBoundingClientRect();
    const left = Math.min(Math.max(at.left, 8), innerWidth - this.tip.offsetWidth - 8);
    this.tip.style.setProperty("left", `${left}px`);
    this.tip.style.setProperty("top", `${at.bottom + 6 + this.tip.offsetHeight > innerHeight ? at.top - this.tip.offsetHeight - 6 : at.bottom + 6}px`);
  }

  /** Arrow keys go from token to token. */
  #walk(event, runs) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || event.target !== runs) return;
    event.preventDefault();
    const tokens = [...runs.querySelectorAll(".tk")].filter((token) => token.offsetParent !== null);
    const at = tokens.indexOf(this.pointed);
    const next = tokens[at < 0 ? 0 : Math.min(Math.max(at + by, 0), tokens.length - 1)];
    if (!next) return;
    next.scrollIntoView({ block: "nearest" });
    this.#point(next);
    announce([plain(next.textContent, 60), ...facts(next).map(([name, value]) => `${name} ${value}`)].join(", "));
  }

  #legend() {
    const { total, trained, tokenizer, problem } = this.view;
    const share = total ? ` (${((100 * trained) / total).toFixed(1)} %)` : "";
    const known = this.view.spans.some((span) => span.tokens.some((token) => token[3] !== null));
    const keys = this.mode === "logprobs" && known
      ? SCALE.map(([, words], level) => element("span", { class: "key" }, element("span", { class: "tk", data: { level, trained: 1 } }, "a"), words))
      : [element("span", { class: "key" }, element("span", { class: "tk", data: { trained: 1, odd: 0, hue: "green" } }, "trained")),
        element("span", { class: "key" }, element("span", { class: "tk", data: { trained: 0 } }, "not trained"))];
    this.legend.hidden = false;
    this.legend.replaceChildren(
      element("strong", {}, `${plural(total, "token")}, ${trained.toLocaleString("en")} trained${share}`),
      element("span", { class: "keys" }, keys),
      ...[tokenizer ? element("span", { class: "soft" }, `Tokenizer: ${plain(tokenizer, 60)}`) : null,
        this.mode === "logprobs" && !known ? element("span", { class: "remark", data: { kind: "repair" } }, "No logprobs were recorded for this run.") : null,
        problem ? element("span", { class: "remark", data: { kind: "repair" } }, visible(problem)) : null].filter((part) => part));
  }
}

function facts(token) {
  const { id, logprob, trained } = token.dataset;
  return [
    id === undefined ? null : ["id", id],
    logprob === undefined ? null : ["logprob", Number(logprob).toFixed(4)],
    logprob === undefined ? null : ["p", percent(Math.exp(Number(logprob)))],
    ["", trained === "1" ? "trained" : "not trained"],
  ].filter((fact) => fact);
}

function percent(probability) {
  const value = 100 * probability;
  return `${value >= 1 ? value.toFixed(1) : value.toPrecision(2)} %`;
}

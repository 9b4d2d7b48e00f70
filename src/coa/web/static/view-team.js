// A recorded team beside the trajectory that was made of it. The tree has every agent with its events; whatever the
// pointer or the focus is on, the steps that were made of it light up on the other side, with the reason in words.
import { element, find, icon } from "./dom.js";
import { block, duration, plain, plural, prose, short, visible } from "./text.js";

const WORDS = { run: "Agent", model_call: "Reply", tool_result: "Result", code_call: "Call by code", note: "Note", verdict: "Verdict" };
const BECAME = { thought: "Thought", plan: "Plan", reflection: "Reflection", call: "Call", result: "Result", candidate: "Candidate",
  check: "Check", answer: "Answer", left_out: "Left out" };
const PEEK = 160; // characters of an event that are shown while it is folded

/** The tree of a team (`coa/view/teams.py`). `goToStep` moves the timeline to the step with this index. */
export function teamPanel(team, { goToStep = () => {} } = {}) {
  return new Panel(team, goToStep).element;
}

/** A panel and a timeline beside each other; where there is no room, one of them, with a switch. */
export function teamLayout(panel, timeline) {
  const sides = [["tree", "Team", panel], ["steps", "Trajectory", timeline]];
  const layout = element("div", { class: "team-layout", data: { side: "tree" } });
  const buttons = sides.map(([side, words]) => element("button", { type: "button", "aria-pressed": String(side === "tree"),
    data: { side }, click: () => showSide(layout, side) }, words));
  layout.append(element("div", { class: "team-switch", role: "group", "aria-label": "What is shown" }, buttons),
    ...sides.map(([side, , child]) => element("div", { class: "team-side", data: { side } }, child)));
  return layout;
}

function showSide(layout, side) {
  layout.dataset.side = side;
  for (const button of find(".team-switch", layout).children) button.setAttribute("aria-pressed", String(button.dataset.side === side));
}

class Panel {
  constructor(team, goToStep) {
    this.team = team;
    this.goToStep = (step) => {
      this.#reveal("steps");
      goToStep(step);
    };
    this.nodes = new Map(); // by number
    this.bridge = element("div", { class: "team-bridge" });
    this.tree = element("ul", { class: "team-tree", role: "tree", "aria-label": "Agents of the team, and what they said and did",
      keydown: (event) => this.#key(event), click: (event) => this.#click(event) });
    this.tree.append(this.#node(team.tree, null, 1, 1, 1));
    this.element = element("section", { class: "team", "aria-label": "Recorded team" }, this.#head(), this.bridge, this.tree, this.#more());
    this.#rest();
    this.nodes.get(0).element.tabIndex = 0;
    this.#listen();
  }

  // ---- what surrounds the tree

  #head() {
    const { team } = this;
    const members = team.members.map(({ name, hue, role, runs, usage, unmetered }) => element("li", { class: "team-member", data: { hue } },
      element("span", { class: "dot" }), element("strong", {}, visible(name.slice(0, 80))), role ? element("span", { class: "soft" }, visible(role)) : null,
      element("span", { class: "time" }, [runs > 1 ? plural(runs, "run") : "", usageWords(usage, unmetered)].filter((words) => words).join(" · "))));
    const place = [team.file, team.place].filter((words) => words).join(", ");
    return element("header", { class: "team-head" },
      element("h2", {}, "Recorded team"),
      element("p", { class: "soft" }, visible(`${plain(team.format, 40)}${place ? ` · ${place.slice(0, 200)}` : ""} · ${usageWords(team.usage, team.unmetered)}`)),
      element("ul", { class: "team-members", "aria-label": "Members" }, members));
  }

  #more() {
    const { handovers, inferred, left_out: left, problems } = this.team;
    const failed = handovers.filter(({ outcome }) => outcome === "failed").length;
    const handed = handovers.map((one) => element("li", { data: { outcome: one.outcome } },
      one.event === null ? asked(one) : element("button", { type: "button", class: "link", click: () => this.#focus(this.nodes.get(one.event)) }, asked(one)),
      " ", element("span", { class: `badge ${one.outcome === "failed" ? "bad" : ""}` }, one.outcome),
      one.error ? element("span", { class: "soft" }, " ", visible(one.error.slice(0, 400))) : null));
    return element("div", { class: "team-more" },
      list(`${plural(handovers.length, "hand-over")}${failed ? `, ${failed} failed` : ""}`, handed),
      list(`${plural(inferred.length, "decision")} of the importer`, inferred.map((one) => element("li", {}, visible(one)))),
      list(`${plural(left.length, "part")} of the trace not read`, left.map(({ what, reason, place }) => element("li", {},
        element("strong", {}, visible(what.slice(0, 400))), ` ${plain(place, 80)} `, element("span", { class: "soft" }, visible(reason.slice(0, 400)))))),
      list(`${plural(problems.length, "thing")} that no step can express`, problems.map((one) => element("li", {}, visible(one.slice(0, 400))))));
  }

  // ---- the tree

  #node(event, parent, level, place, size) {
    const node = { event, parent, children: [], open: event.type === "run", drawn: false };
    this.nodes.set(event.number, node);
    node.detail = element("div", { class: "team-detail" });
    node.group = event.events.length ? element("ul", { role: "group" }) : null;
    const label = `team-label-${event.number}`;
    node.element = element("li", { role: "treeitem", tabindex: "-1", class: "team-node", "aria-level": level, "aria-posinset": place, "aria-setsize": size,
      "aria-labelledby": label, data: { number: event.number, type: event.type, hue: event.hue, leftOut: event.left_out ? "yes" : "no", ok: event.ok ? "yes" : "no" } },
      element("div", { class: "team-row" },
        icon("fold"),
        element("div", { class: "team-label", id: label }, this.#title(event), this.#peek(event)),
        this.#became(event)),
      node.detail, node.group);
    node.children = event.events.map((child, index) => this.#node(child, node, level + 1, index + 1, event.events.length));
    node.group?.append(...node.children);
    node.children = event.events.map((child) => this.nodes.get(child.number));
    this.#show(node);
    return node.element;
  }

  #title(event) {
    const words = event.type === "run" ? event.agent : WORDS[event.type];
    const calls = event.calls.map(({ name, member }) => element("code", { class: member ? "asks" : "" }, visible(name.slice(0, 80))));
    return element("span", { class: "team-title" },
      element("span", { class: "title" }, visible(words.slice(0, 80))), calls,
      event.type === "run" && event.run.kind ? element("span", { class: "tag" }, visible(event.run.kind.slice(0, 60))) : null,
      event.about ? element("span", { class: "tag" }, visible(event.about.slice(0, 120))) : null,
      event.copied ? element("span", { class: "badge" }, "copied") : null,
      event.ok ? null : element("span", { class: "badge bad" }, "failed"));
  }

  #peek({ type, run, thought, text, error }) {
    const lines = type === "run" ? [["Asked: ", run.request], [run.answered ? "Answered: " : "No answer. ", text || error]] : [["", thought || text || error]];
    return lines.filter(([, said]) => said).map(([label, said]) => element("span", { class: "team-peek" }, label, visible(firstLine(said))));
  }

  /** What became of an event: the steps, as links, and why. */
  #became(event) {
    if (!event.became.length) return null;
    return element("ul", { class: "team-became" }, event.became.map(({ kind, tool, steps, why }) => element("li", { data: { kind: steps.length || kind === "candidate" ? "kept" : "left_out" } },
      element("span", { class: "team-kind" }, BECAME[kind] ?? kind, tool ? [" ", element("code", {}, visible(tool.slice(0, 60)))] : null),
      steps.map((step) => element("a", { href: "#", class: "team-step", tabindex: "-1", data: { to: step }, "aria-label": `Go to step #${step}` }, `→ #${step}`)),
      element("span", { class: "team-why" }, visible(why.join("; ").slice(0, 600))))));
  }

  /** The whole texts of an event. They are made when they are first shown. */
  #draw(node) {
    if (node.drawn) return;
    node.drawn = true;
    const { event } = node;
    if (event.run) return void node.detail.append(aboutRun(event));
    const isResult = event.type === "tool_result" || event.type === "code_call";
    const spent = [event.model.slice(0, 100), event.usage ? usageWords(event.usage, 0) : ""].filter((words) => words).join(" · ");
    node.detail.append(...part("Thought", event.thought), ...(isResult ? [] : part("Wrote", event.text)), ...part("Error", event.error),
      ...event.calls.map(({ name, block: given }) => block({ ...given, label: `${plain(name, 60)}: ${given.label}` })),
      ...(isResult && event.text ? [block({ label: "result", text: event.text, tokens: null })] : []),
      ...(spent ? [element("p", { class: "time" }, visible(spent))] : []));
  }

  #show(node) {
    const { event } = node;
    const hasMore = node.group !== null || [event.thought, event.text, event.error, event.run?.request, event.run?.system].some((text) => text) || event.calls.length > 0;
    if (hasMore) node.element.setAttribute("aria-expanded", String(node.open));
    if (node.group) node.group.hidden = !node.open;
    node.detail.hidden = !node.open;
    if (node.open) this.#draw(node);
  }

  #toggle(node, open = !node.open) {
    if (!node.element.hasAttribute("aria-expanded")) return;
    node.open = open;
    this.#show(node);
  }

  // ---- keys and pointer

  #visibleNodes() {
    const found = [];
    const walk = (node) => {
      found.push(node);
      if (node.open) node.children.forEach(walk);
    };
    walk(this.nodes.get(0));
    return found;
  }

  #focus(node) {
    if (!node) return;
    this.#reveal("tree");
    for (let above = node.parent; above; above = above.parent) this.#toggle(above, true);
    for (const one of this.tree.querySelectorAll('[tabindex="0"][role="treeitem"]')) one.tabIndex = -1;
    node.element.tabIndex = 0;
    node.element.focus({ preventScroll: true });
    node.element.firstElementChild.scrollIntoView({ block: "nearest" });
  }

  #current() {
    return this.nodes.get(Number(document.activeElement?.closest?.(".team-node")?.dataset.number ?? find('[role="treeitem"][tabindex="0"]', this.tree).dataset.number));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.matches(".team-node")) return;
    const node = this.nodes.get(Number(event.target.dataset.number));
    const seen = this.#visibleNodes();
    const at = seen.indexOf(node);
    const actions = {
      ArrowDown: () => this.#focus(seen[at + 1]),
      ArrowUp: () => this.#focus(seen[at - 1]),
      Home: () => this.#focus(seen[0]),
      End: () => this.#focus(seen.at(-1)),
      ArrowRight: () => (node.open ? this.#focus(node.children[0]) : this.#toggle(node, true)),
      ArrowLeft: () => (node.open && node.element.hasAttribute("aria-expanded") ? this.#toggle(node, false) : this.#focus(node.parent)),
      " ": () => this.#toggle(node),
      Enter: () => (node.event.steps.length ? this.goToStep(node.event.steps[0]) : this.#toggle(node)),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
  }

  #click(event) {
    const step = event.target.closest(".team-step");
    if (step) {
      event.preventDefault();
      return void this.goToStep(Number(step.dataset.to));
    }
    const row = event.target.closest(".team-row");
    if (!row || getSelection().type === "Range") return;
    const node = this.nodes.get(Number(row.parentElement.dataset.number));
    this.#toggle(node);
    this.#focus(node);
  }

  /** Where there is room for one side only, shows this one. */
  #reveal(side) {
    const layout = this.element.closest(".team-layout");
    if (layout) showSide(layout, side);
  }

  // ---- both sides

  /** Steps are outside of this panel, so the listeners are the document's, as long as the panel is in it. */
  #listen() {
    const ending = new AbortController();
    let wasShown = false;
    const on = (type, act) => document.addEventListener(type, (event) => {
      if (this.element.isConnected) {
        wasShown = true;
        act(event);
      } else if (wasShown) {
        ending.abort();
      }
    }, { signal: ending.signal });
    on("pointerover", (event) => this.#lit(event.target));
    on("focusin", (event) => this.#lit(event.target));
    on("keydown", (event) => {
      const writing = event.target.closest?.("input, textarea, select, [contenteditable]");
      if (event.key !== "t" || event.ctrlKey || event.metaKey || event.altKey || writing || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      this.#switch();
    });
  }

  /** From the tree to the steps that were made of the event, and back. */
  #switch() {
    if (this.tree.contains(document.activeElement)) {
      const { event } = this.#current();
      this.goToStep(event.steps[0] ?? this.#nearestStep(event.number));
    } else {
      const steps = stepsOf(document.activeElement?.closest?.(".step, .note"));
      const made = steps.flatMap((step) => this.team.steps[step] ?? []);
      this.#focus(made.length ? this.nodes.get(made[0]) : this.#current());
    }
  }

  /** For an event that is in no step: the first step that was made of something after it. */
  #nearestStep(number) {
    const after = this.team.steps.findIndex((events) => events.some((one) => one > number));
    return after < 0 ? this.team.steps.length - 1 : after;
  }

  #lit(target) {
    if (!(target instanceof Element)) return;
    const row = target.closest(".team-row, .team-detail");
    const focused = target.matches(".team-node") ? target : row?.parentElement;
    if (focused && this.tree.contains(focused)) return this.#link([this.nodes.get(Number(focused.dataset.number))], null);
    const step = target.closest(".run .step, .run .note");
    if (step && !this.element.contains(step)) {
      const steps = stepsOf(step);
      const numbers = [...new Set(steps.flatMap((one) => this.team.steps[one] ?? []))];
      return this.#link(numbers.map((number) => this.nodes.get(number)), steps);
    }
  }

  /** `steps` are those that were pointed at; null if events were. */
  #link(nodes, steps) {
    for (const lit of document.querySelectorAll("[data-linked]")) delete lit.dataset.linked;
    for (const node of nodes) node.element.dataset.linked = "";
    const made = steps ?? [...new Set(nodes.flatMap(({ event }) => event.steps))];
    const shown = made.map((step) => document.querySelector(`.run [data-step="${step}"]`)?.closest(".step, .note")).filter((one) => one);
    for (const one of shown) one.dataset.linked = "";
    const other = steps === null ? shown[0] : nodes.map((node) => node.element.firstElementChild).find((row) => row.offsetParent !== null);
    if (other) bring(other);
    if (steps === null) this.#explain(nodes[0].event, made);
    else this.#origin(nodes, made);
  }

  #explain({ agent, type, became, about }, steps) {
    const what = type === "run" ? "The run" : WORDS[type];
    const why = [...new Set(became.flatMap((one) => one.why))].join("; ");
    const target = steps.length ? stepWords(steps) : became.some(({ kind }) => kind === "candidate") ? "the check that follows" : "no step";
    const reason = why || (about === "to answer" ? "it hands in the answer" : type === "run" ? "its events are steps" : "there is no text in it");
    this.bridge.replaceChildren(element("strong", {}, visible(agent.slice(0, 80))), ` · ${what} → ${target}: `, element("span", {}, visible(reason.slice(0, 600))));
  }

  #origin(nodes, steps) {
    const from = nodes.flatMap(({ event }, index) => [index ? ", " : "", element("strong", {}, visible(event.agent.slice(0, 80))), ` · ${event.type === "run" ? "Answer or request" : WORDS[event.type]}`]);
    const became = nodes.flatMap(({ event }) => event.became.filter((one) => one.steps.some((step) => steps.includes(step))));
    const why = [...new Set(became.flatMap((one) => one.why))].join("; ");
    this.bridge.replaceChildren(`${capital(stepWords(steps))} ← `, ...(from.length ? from : ["nothing that was recorded"]), why ? ": " : "", element("span", {}, visible(why.slice(0, 600))));
  }

  #rest() {
    this.bridge.replaceChildren(element("span", { class: "soft" }, "Point at an event or at a step: the other side shows what belongs to it. ",
      element("kbd", {}, "t"), " goes from one side to the other."));
  }
}

function part(label, text) {
  return text ? [element("h4", {}, label), prose(text)] : [];
}

/** What an agent is and was asked, folded: its row has the beginning of it. */
function aboutRun({ run, text, error }) {
  const fold = element("details", { class: "team-about" }, element("summary", {}, "Request, answer and prompt"));
  fold.addEventListener("toggle", () => {
    fold.append(...part("Was asked", run.request), ...part("Answered", text), ...part("Error", error), ...part("About", run.description),
      ...(run.tools.length ? [element("h4", {}, "May call"), element("p", {}, visible(run.tools.join(", ").slice(0, 2000)))] : []),
      ...(run.system ? [block({ label: "system prompt", text: run.system, tokens: null })] : []));
  }, { once: true });
  return fold;
}

function asked({ by, to, tool }) {
  return element("span", {}, visible(`${by.slice(0, 80)} asked ${to.slice(0, 80)}`), tool && tool !== to ? [" by ", element("code", {}, visible(tool.slice(0, 60)))] : null);
}

function list(words, items) {
  return items.length ? element("details", { class: "team-list" }, element("summary", {}, words), element("ul", {}, items)) : null;
}

function firstLine(text) {
  const line = text.slice(0, 4 * PEEK).replace(/\s+/g, " ").trim();
  return line.slice(0, PEEK) + (line.length > PEEK || text.length > 4 * PEEK ? "…" : "");
}

/** Scrolls the column of an element, and nothing else, until the element is seen. */
function bring(shown) {
  const side = shown.closest(".team-side");
  if (!side || side.scrollHeight <= side.clientHeight) return;
  const [box, room] = [shown.getBoundingClientRect(), side.getBoundingClientRect()];
  const top = room.top + (find(".team-bridge", side)?.offsetHeight ?? 0) + 12;
  if (box.top < top) side.scrollTop -= top - box.top;
  else if (box.bottom > room.bottom - 12) side.scrollTop += Math.min(box.bottom - room.bottom + 12, box.top - top);
}

/** The step of an element of the timeline, and that of the result in it. */
function stepsOf(shown) {
  if (!shown) return [];
  return [shown, ...shown.querySelectorAll("[data-step]")].filter((one) => one.dataset.step !== undefined).map((one) => Number(one.dataset.step));
}

function stepWords(steps) {
  return `${steps.length === 1 ? "step" : "steps"} ${steps.map((step) => `#${step}`).join(", ")}`;
}

function capital(words) {
  return words[0].toUpperCase() + words.slice(1);
}

function usageWords(usage, unmetered) {
  const words = [
    usage.model_calls ? plural(usage.model_calls, "model call") : "",
    usage.tool_calls ? plural(usage.tool_calls, "tool call") : "",
    usage.prompt_tokens || usage.completion_tokens ? `${short(usage.prompt_tokens)} tokens read, ${short(usage.completion_tokens)} written` : "",
    usage.seconds ? duration(usage.seconds) : "",
    usage.cost === null ? "" : `cost ${usage.cost.toPrecision(2)}`,
    unmetered ? `${plural(unmetered, "call")} not counted` : "",
  ];
  return words.filter((part) => part).join(" · ");
}

// The filters of the list. What they offer are the values that the runs have, with their counts.
import { element, icon } from "./dom.js";
import { OUTCOMES } from "./outcome.js";
import { plain } from "./text.js";

export class FilterBar {
  /** `change` sets or removes (null) parameters of the query. */
  constructor(change) {
    this.change = change;
    this.search = element("input", { type: "search", id: "search", placeholder: "Search questions, steps and results", autocomplete: "off", spellcheck: "false",
      input: () => this.change({ q: this.search.value }, { typing: true }),
      keydown: (event) => event.key === "Enter" && this.change({ q: this.search.value }) });
    this.scope = select("in", "Search in", [["", "Everywhere"], ["question", "Questions"], ["steps", "Steps"], ["observations", "Results of tools"]], change);
    this.outcomes = element("div", { class: "pills", role: "group", "aria-label": "Outcome" });
    this.choices = {
      folder: choice("folder", "Folder", change), stop: choice("stop", "Stop reason", change), agent: choice("agent", "Agent", change),
      benchmark: choice("benchmark", "Benchmark", change), family: choice("family", "Family", change),
    };
    this.flags = { tool_error: flag("tool_error", "Tool error", change), repaired: flag("repaired", "Repaired", change) };
    this.numbers = { min_tokens: number("min_tokens", "Tokens from", change), max_tokens: number("max_tokens", "to", change), step: number("step", "RL step", change) };
    this.chips = element("div", { class: "chips" });
    this.clear = element("button", { type: "button", class: "quiet clear", hidden: true, title: "Clear search and filters (x)",
      click: () => this.change(Object.fromEntries(this.named.map((name) => [name, null]))) }, icon("cross"), "Clear");
    const more = element("details", { class: "more-filters" }, element("summary", {}, icon("filter"), "Filters"), element("div", { class: "filters" },
      Object.values(this.choices).map((one) => one.element), Object.values(this.numbers).map((one) => one.element), Object.values(this.flags)));
    more.open = matchMedia("(min-width: 46rem)").matches;
    this.element = element("form", { class: "filter-bar", role: "search", "aria-label": "Runs", submit: (event) => event.preventDefault() },
      element("div", { class: "search-line" },
        element("label", { class: "search-box" }, icon("search"), element("span", { class: "unseen" }, "Search"), this.search, element("kbd", { "aria-hidden": "true" }, "/")),
        this.scope.element),
      element("div", { class: "pill-line" }, this.outcomes, this.chips, this.clear), more);
    this.named = [];
  }

  focus() {
    this.search.focus();
    this.search.select();
  }

  draw(index, query) {
    const { facets, folders } = index;
    if (document.activeElement !== this.search) this.search.value = query.get("q") ?? "";
    this.scope.set(query.get("in") ?? "");
    this.scope.element.hidden = !query.get("q");
    this.#outcomes(facets.outcomes, query);
    this.choices.stop.offer(counted(facets.stops, (stop) => stop.replaceAll("_", " ")), query);
    this.choices.agent.offer(Object.entries(facets.agents).map(([tag, { title, runs }]) => [tag, `${plain(title, 40)}${title.toLowerCase() === tag ? "" : ` <${plain(tag, 30)}>`} (${runs.toLocaleString("en")})`]), query);
    this.choices.benchmark.offer(counted(facets.benchmarks), query);
    this.choices.family.offer(counted(facets.families), query);
    this.choices.folder.offer(folders.filter((folder) => folder.runs).map((folder) => [folder.id, `${plain(folder.path || "·", 60)} (${folder.runs.toLocaleString("en")})`]), query);
    for (const [name, box] of Object.entries(this.flags)) box.firstChild.checked = ["1", "true"].includes(query.get(name));
    for (const [name, one] of Object.entries(this.numbers)) one.set(query.get(name));
    this.numbers.step.element.hidden = !facets.step && !query.get("step");
    if (facets.step) this.numbers.step.hint(`${facets.step[0]}–${facets.step[1]}`);
    this.named = [...query.keys()].filter((name) => !["sort", "offset", "limit"].includes(name));
    this.clear.hidden = this.named.length === 0;
    this.#chips(query);
  }

  #outcomes(counts, query) {
    const chosen = new Set((query.get("outcome") ?? "").split(",").filter((one) => one));
    const offered = OUTCOMES.filter((name) => counts[name] || chosen.has(name));
    this.outcomes.replaceChildren(...offered.map((name) => element("button", { type: "button", class: "pill", "aria-pressed": String(chosen.has(name)), data: { outcome: name },
      click: () => {
        chosen[chosen.has(name) ? "delete" : "add"](name);
        this.change({ outcome: [...chosen].join(",") });
      } }, name, element("span", { class: "count" }, (counts[name] ?? 0).toLocaleString("en")))));
  }

  /** Filters that have no control of their own: they come from links of other views. */
  #chips(query) {
    const found = ["task", "group", "sample", "finding", "learnt"].filter((name) => query.get(name));
    this.chips.replaceChildren(...found.map((name) => element("button", { type: "button", class: "pill", "aria-label": `Remove the filter ${name}`,
      click: () => this.change({ [name]: null }) }, `${name}: ${plain(query.get(name), 40)}`, icon("cross"))));
  }
}

function counted(counts, words = (name) => name) {
  return Object.entries(counts).map(([name, count]) => [name, `${plain(words(name), 60)} (${count.toLocaleString("en")})`]);
}

function select(name, title, options, change) {
  const box = element("select", { id: `filter-${name}`, change: () => change({ [name]: box.value || null }) },
    options.map(([value, words]) => element("option", { value }, words)));
  const made = element("label", { class: "filter" }, element("span", {}, title), box);
  return { element: made, box, set: (value) => (box.value = value) };
}

/** A select whose options come later. One without anything to choose is hidden. */
function choice(name, title, change) {
  const made = select(name, title, [["", "any"]], change);
  let known = "";
  return { element: made.element, offer(options, query) {
    const value = query.get(name) ?? "";
    const all = value && !options.some(([one]) => one === value) ? [...options, [value, plain(value, 60)]] : options;
    const state = JSON.stringify(all);
    if (state !== known) made.box.replaceChildren(...[["", "any"], ...all].map(([one, words]) => element("option", { value: one }, words)));
    known = state;
    made.box.value = value;
    made.box.toggleAttribute("data-set", value !== "");
    made.element.hidden = all.length < 2 && !value;
  } };
}

function flag(name, title, change) {
  const box = element("input", { type: "checkbox", change: () => change({ [name]: box.checked ? "1" : null }) });
  return element("label", { class: "flag" }, box, title);
}

function number(name, title, change) {
  const box = element("input", { type: "number", min: "0", step: "1", inputmode: "numeric", change: () => change({ [name]: box.value || null }) });
  const made = element("label", { class: "filter number" }, element("span", {}, title), box);
  return { element: made, set: (value) => document.activeElement !== box && (box.value = value ?? ""), hint: (words) => (box.placeholder = words) };
}

// Comparing: folders on the tasks that they have in common, and two runs next to each other.
import { firstDifference, stepsOf } from "./difference.js";
import { element } from "./dom.js";
import { outcomeBadge, runAddress } from "./outcome.js";
import { duration, plain, plural, visible } from "./text.js";
import { Timeline } from "./timeline.js";
import { KINDS, percent, redrawn } from "./view-folder.js";

const PAGE = 50;

export async function show(main, parameters, data) {
  return parameters.path[1] === "runs" ? runs(main, parameters, data) : folders(main, parameters, data);
}

// ---- folders

async function folders(main, { query }, data) {
  const ids = (query.get("folders") ?? "").split(",").filter((id) => id);
  const page = element("div", { class: "folder compare" });
  main.append(page);
  const filters = element("div", { class: "kinds", role: "group", "aria-label": "Which tasks" });
  const list = element("ol", { class: "compared" });
  const more = element("button", { type: "button", hidden: true, click: () => load() }, "Show more tasks");
  const shown = { title: "Compare", refresh, keys: keys(list), shortcuts: [[["j"], "Next task"], [["k"], "Previous task"], [["Enter"], "The runs next to each other"]] };
  let only = query.get("only") ?? "";
  let found = null;
  let before = ""; // what is drawn
  let index = await data.index();

  const go = (wanted, filter = only) => {
    const next = new URLSearchParams({ folders: wanted.join(",") });
    if (filter) next.set("only", filter);
    location.hash = `#/compare?${next}`;
  };

  function chooser() {
    const free = index.folders.filter((row) => row.runs && !ids.includes(row.id));
    const chosen = ids.map((id, place) => {
      const row = index.folders.find((one) => one.id === id);
      return element("li", { class: "chosen" }, element("span", { class: "letter" }, letter(place)),
        row ? element("a", { href: `#/folder/${id}` }, visible(row.path || ".")) : visible(id),
        element("button", { type: "button", class: "quiet small", "aria-label": `Leave out ${plain(row?.path ?? id)}`,
          click: () => go(ids.filter((other) => other !== id), "") }, "×"));
    });
    const select = element("select", { "aria-label": "Add a folder", change: (event) => event.currentTarget.value && go([...ids, event.currentTarget.value], "") },
      element("option", { value: "" }, ids.length ? "Add a folder …" : "Choose a folder …"),
      free.map((row) => element("option", { value: row.id }, `${plain(row.path || ".")} · ${KINDS[row.kind] ?? row.kind} · ${plural(row.runs, "run")}`)));
    return element("header", { class: "folder-head" }, element("h1", {}, "Compare"),
      element("ul", { class: "chooser", "aria-label": "Folders" }, chosen, element("li", {}, free.length ? select : null)));
  }

  async function refresh() {
    index = await data.index();
    if (ids.length < 2) {
      return void page.replaceChildren(chooser(), element("p", { class: "empty soft" }, ids.length
        ? "Choose another folder to compare it with." : "Choose two or more folders. Runs are compared on the tasks that all of them have."));
    }
    const [views, first] = await Promise.all([
      Promise.all(ids.map((id) => data.folder(id).catch(() => null))),
      data.compare({ folders: ids.join(","), only, limit: Math.max(list.childElementCount, PAGE) }),
    ]);
    found = first;
    const now = JSON.stringify([views.map((view) => view?.figures), found, index.folders.length]);
    if (now !== before) {
      redrawn(page, () => {
        list.replaceChildren(...found.tasks.map(task));
        page.replaceChildren(chooser(), figures(views, found), counts(), filters, list.childElementCount ? list : none(), more);
      });
    }
    before = now;
    more.hidden = list.childElementCount >= found.total;
    shown.title = `Compare ${found.folders.map((row) => plain(row.path.split("/").at(-1) || ".", 40)).join(", ")}`;
  }

  function none() {
    return element("p", { class: "empty soft" }, found.counts.tasks ? "There is no such task." : "These folders have no task in common.");
  }

  async function load() {
    more.disabled = true;
    const next = await data.compare({ folders: ids.join(","), only, offset: list.childElementCount, limit: PAGE });
    list.append(...next.tasks.map(task));
    more.hidden = list.childElementCount >= next.total || !next.tasks.length;
    more.disabled = false;
  }

  function figures(views, { folders: rows, counts: { patterns = {}, tasks } }) {
    const known = views.map((view) => view?.figures ?? null);
    const metrics = [...new Set(known.flatMap((one) => Object.keys(one?.metrics ?? {})))].filter((name) => name !== "pass@1");
    const common = ids.map((_, place) => Object.entries(patterns).reduce((sum, [pattern, count]) => sum + (pattern[place] === "1" ? count : 0), 0));
    const priced = known.some((one) => one?.cost_per_success != null);
    const columns = ["", "Folder", "Solved, common tasks", "pass@1", ...metrics, "Tokens per success", ...(priced ? ["Cost per success"] : []), "Runs"];
    return element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Figures of the folders" }, element("table", {},
      element("thead", {}, element("tr", {}, columns.map((name, place) => (name ? element("th", { scope: "col", class: place > 1 ? "number" : null }, name) : element("td", {}))))),
      element("tbody", {}, rows.map((row, place) => {
        const one = known[place];
        const success = one?.metrics["pass@1"] ?? (row.scored ? { value: row.right / row.scored, low: null, high: null } : null);
        const tokens = one ? one.tokens_per_success : row.right ? row.tokens / row.right : null;
        return element("tr", {}, element("td", {}, element("span", { class: "letter" }, letter(place))),
          element("th", { scope: "row" }, element("a", { href: `#/folder/${row.id}` }, visible(row.path || "."))),
          number(tasks ? `${common[place]} of ${tasks} (${percent(common[place] / tasks)})` : ""),
          number(estimate(success)), metrics.map((name) => number(estimate(one?.metrics[name]))),
          number(tokens === null ? "" : Math.round(tokens).toLocaleString("en")),
          priced ? number(one?.cost_per_success == null ? "" : one.cost_per_success.toPrecision(4)) : null,
          number(row.runs.toLocaleString("en")));
      }))));
  }

  function counts() {
    const { tasks, disagree, patterns = {} } = found.counts;
    const choices = [["", "All tasks", tasks], ["disagree", "Disagree", disagree],
      ...Object.entries(patterns).sort(([, one], [, other]) => other - one).slice(0, 12).map(([pattern, count]) => [pattern, words(pattern), count])];
    filters.replaceChildren(...choices.map(([key, name, count]) => element("button", { type: "button", class: "quiet small", "aria-pressed": String(key === only),
      click: () => go(ids, key) }, name, element("span", { class: "soft" }, String(count)))));
    if (ids.length !== 2 || !tasks) return "";
    return outcomes(patterns, tasks);
  }

  /** Two folders: four counts, as one bar. */
  function outcomes(patterns, tasks) {
    const parts = [["11", "both"], ["10", "left"], ["01", "right"], ["00", "none"]];
    const bar = element("div", { class: "quarters" }, parts.filter(([pattern]) => patterns[pattern]).map(([pattern, name]) => {
      const part = element("a", { class: name, href: `#/compare?${new URLSearchParams({ folders: ids.join(","), only: pattern })}` },
        element("strong", {}, String(patterns[pattern])), ` ${words(pattern)}`);
      part.style.setProperty("flex-grow", String(patterns[pattern] / tasks));
      return part;
    }));
    return bar;
  }

  function words(pattern) {
    const right = [...pattern].flatMap((digit, place) => (digit === "1" ? [letter(place)] : []));
    if (!right.length) return pattern.length === 2 ? "Neither right" : "None right";
    if (right.length === pattern.length) return pattern.length === 2 ? "Both right" : "All right";
    return `Only ${right.join(", ")} right`;
  }

  function task(one) {
    const sides = sidesOf(one);
    return element("li", { class: "task" },
      element("header", {}, element("a", { class: "question", href: sides ? `#/compare/runs?${new URLSearchParams(sides)}` : `#/runs?task=${encodeURIComponent(one.task)}` }, visible(one.question || one.task)),
        element("span", { class: "soft" }, visible(one.task))),
      element("dl", { class: "sides" }, one.runs.map((rows, place) => element("div", {},
        element("dt", {}, element("span", { class: "letter" }, letter(place))),
        rows.length ? rows.slice(0, 16).map((row) => element("dd", {},
          element("a", { href: `#/run/${row.id}`, title: plain(row.answer ?? "no answer") }, outcomeBadge(row.outcome)),
          rows.length < 3 ? element("span", { class: "given" }, row.answer === null ? element("span", { class: "soft" }, "no answer") : visible(row.answer.slice(0, 200))) : null))
          : element("dd", { class: "soft" }, "no run"),
        rows.length > 16 ? element("dd", { class: "soft" }, `and ${rows.length - 16} more`) : null))));
  }

  await refresh();
  return shown;
}

/** The two runs of a task that are worth comparing: of different outcomes if there are such. */
function sidesOf({ runs: sides }) {
  const there = sides.filter((rows) => rows.length);
  if (there.length < 2) return null;
  const left = there[0][0];
  const others = there.slice(1).flat();
  const right = others.find((row) => (row.outcome === "right") !== (left.outcome === "right")) ?? others[0];
  return { left: left.id, right: right.id };
}

function letter(place) {
  return String.fromCharCode(65 + (place % 26));
}

function estimate(value) {
  if (!value) return "";
  return value.low === null ? percent(value.value) : `${percent(value.value)} [${(100 * value.low).toFixed(0)}, ${(100 * (value.high ?? 1)).toFixed(0)}]`;
}

function number(text) {
  return element("td", { class: "number" }, text);
}

function keys(list) {
  const move = (by) => {
    const links = [...list.querySelectorAll("a.question")];
    const here = links.indexOf(document.activeElement);
    const next = links[here < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(here + by, 0), links.length - 1)];
    next?.focus({ preventScroll: true });
    next?.closest("li").scrollIntoView({ block: "nearest" });
  };
  return { j: () => move(1), k: () => move(-1) };
}

// ---- two runs

async function runs(main, { query }, data) {
  const [left, right] = [query.get("left") ?? "", query.get("right") ?? ""];
  const page = element("div", { class: "folder compare" });
  main.append(page);
  const records = await Promise.all([data.run(left), data.run(right)]);
  const timelines = records.map((record, side) => {
    const timeline = new Timeline(record.profile, { tools: (step) => element("a", { class: "step-link", href: runAddress(record.row.id, step), "aria-label": `Open the run at step ${step}` }, `#${step}`) });
    timeline.element.setAttribute("aria-label", `Steps of the ${side ? "right" : "left"} run`);
    for (const event of record.events) timeline.apply(event);
    timeline.fold.hidden = true;
    return timeline;
  });
  const steps = records.map((record) => stepsOf(record.events));
  const difference = firstDifference(...steps);
  const marks = difference ? timelines.map((timeline, side) => marked(timeline, steps[side], difference, side)) : [];
  const same = records[0].row.task === records[1].row.task;
  const swap = new URLSearchParams({ left: right, right: left });
  page.replaceChildren(
    element("header", { class: "folder-head" },
      element("p", { class: "crumbs soft" }, element("a", { href: `#/compare?folders=${[...new Set(records.map(({ row }) => row.folder))].join(",")}` }, "Compare"),
        element("span", { "aria-hidden": "true" }, "›"), visible(records[0].row.task)),
      element("h1", {}, visible(records[0].row.question)),
      same ? null : element("ul", { class: "messages warning" }, element("li", {}, "These runs have different tasks.")),
      element("p", { class: "doors" },
        difference ? element("button", { type: "button", title: "Key d", click: jump }, "First difference") : null,
        element("a", { class: "button", href: `#/compare/runs?${swap}` }, "Swap sides")),
      element("p", { class: "difference-words" }, said(difference, steps))),
    element("div", { class: "two", tabindex: "0", role: "group", "aria-label": "Two runs" }, records.map(({ row }, side) => element("section", { class: "side", "aria-label": side ? "Right run" : "Left run" },
      about(row, side), timelines[side].element))));

  function jump() {
    const mark = marks.find((one) => one) ?? null;
    mark?.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    mark?.focus({ preventScroll: true });
  }

  return { title: `Compare ${plain(records[0].row.task, 40)}`, keys: { d: jump, s: () => (location.hash = `#/compare/runs?${swap}`) },
    shortcuts: [[["d"], "First difference"], [["s"], "Swap the sides"], [["j"], "Next step"], [["k"], "Previous step"]] };
}

function about(row, side) {
  return element("header", { class: "side-head" },
    element("h2", {}, element("span", { class: "letter" }, letter(side)), element("a", { href: `#/folder/${row.folder}` }, visible(row.path || ".")), outcomeBadge(row.outcome)),
    element("p", { class: "soft facts" }, [
      element("a", { href: `#/run/${row.id}` }, "Open the run"),
      plural(row.steps, "step"), plural(row.tool_calls, "tool call"), plural(row.tokens, "token"), row.seconds ? duration(row.seconds) : null,
      row.reward === null ? null : `reward ${Number(row.reward.toPrecision(3))}`,
    ].filter((part) => part).map((part) => element("span", {}, part))));
}

function said(difference, steps) {
  if (!difference) return "The runs are the same, step by step.";
  const place = steps[0][difference.at]?.card ?? steps[1][difference.at]?.card ?? difference.at;
  const agent = (side) => steps[side][difference.at]?.agent.replaceAll("_", " ");
  switch (difference.why) {
    case "end": return `The first ${plural(difference.at, "step")} are the same; then one of the runs ends.`;
    case "agent": return `The runs part at step ${place}: ${agent(0)} on the left, ${agent(1)} on the right.`;
    case "result": return `The runs part at step ${place}: ${agent(0)} returned something else.`;
    default: return `The runs part at step ${place}: ${agent(0)} wrote something else.`;
  }
}

/** Marks the step of one side at which the runs part; returns what the keys move to. */
function marked(timeline, steps, difference, side) {
  const step = steps[difference.at];
  const words = side ? difference.right : difference.left;
  const note = element("p", { class: "parting", tabindex: "-1" }, element("strong", {}, "First difference "),
    step ? [visible(words.before), element("mark", {}, words.word ? visible(words.word) : "(nothing)"), visible(words.after)] : "The run ended before this step.");
  const card = step ? timeline.items.get(step.item)?.element : null;
  if (!card) {
    timeline.steps.append(element("li", { class: "note" }, note));
    return note;
  }
  card.dataset.parting = "";
  card.prepend(note);
  if (step.result) for (const fold of card.querySelectorAll("details")) fold.open = true;
  highlight(step.result ? card.querySelector(".result") ?? card : card, words, note);
  return note;
}

/** Marks the word where the step shows it, if the text there is as it was written. */
function highlight(card, { before, word }, note) {
  if (!word) return;
  const context = before.replace(/^…/, "").slice(-24) + word;
  const walker = document.createTreeWalker(card, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (note.contains(node)) continue;
    const at = node.data.indexOf(context);
    if (at < 0) continue;
    const found = node.splitText(at + context.length - word.length);
    found.splitText(word.length);
    const mark = element("mark", {});
    found.replaceWith(mark);
    mark.append(found);
    return;
  }
}

// Run folders: the list of all, and the page of one. The parts of a page are those of coa/view/folders/parts.py.
import { element } from "./dom.js";
import { move } from "./keyboard.js";
import { Plot, bars, funnel } from "./plot.js";
import { moment, plain, plural, visible } from "./text.js";

/** As Python writes it, so that a share is the same everywhere: a half is rounded to the even digit. */
export function percent(share) {
  const tenths = share * 1000;
  const whole = tenths % 1 === 0.5 ? 2 * Math.round(tenths / 2) : Math.round(tenths);
  return `${(whole / 10).toFixed(1)}%`;
}

export const KINDS = {
  eval: "Evaluation", compare: "Comparison", distill: "Distillation", sft: "Fine-tuning", rl: "Reinforcement learning",
  sample: "Query sampling", teach: "Team", run: "Runs", traces: "Traces", serve: "Server", demo: "Demo", data: "Data",
  training: "Training",
};

export async function show(main, parameters, data) {
  return parameters.path[0] === "folders" ? folders(main, parameters, data) : folder(main, parameters, data);
}

/** Draws a page anew. What has the focus keeps it, if there is an element of the same kind in its place. */
export function redrawn(page, draw) {
  const places = [];
  const active = document.activeElement;
  for (let node = active; page.contains(node) && node !== page; node = node.parentElement) {
    places.unshift([...node.parentElement.children].indexOf(node));
  }
  draw();
  if (!places.length) return;
  const next = places.reduce((node, place) => node?.children[place], page);
  if (next && next.tagName === active.tagName && next !== document.activeElement) next.focus({ preventScroll: true });
}

// ---- addresses

/** The folder at a path that is relative to another one; undefined if the viewer does not show it. */
function at(folders, from, relative) {
  const parts = [];
  for (const part of `${from.path}/${relative}`.split("/")) {
    if (part === "..") parts.pop();
    else if (part && part !== ".") parts.push(part);
  }
  const wanted = parts.join("/");
  const ends = (one) => one.path.replace(/^\.\/?/, "").replace(/\/+$/, "");
  return folders.find((one) => ends(one) === wanted) ?? folders.find((one) => one !== from && wanted && ends(one).endsWith(`/${wanted}`));
}

/** Completes the links of a folder's view, which do not know the ids of folders. `steps` are those that have groups. */
export function linker(row, folders, steps = null) {
  const runs = (id, query) => {
    const filters = new URLSearchParams(query);
    return `#/runs?${new URLSearchParams([["folder", id], ...filters])}`;
  };
  return (href) => {
    if (href.startsWith("step/")) return !steps || steps.has(Number(href.slice(5))) ? `#/folder/${row.id}/${href}` : null;
    if (href.startsWith("runs?")) return runs(row.id, href.slice(5));
    if (href.startsWith("tasks?")) return `#/runs?${href.slice(6)}`;
    if (href.startsWith("compare?")) {
      const query = new URLSearchParams(href.slice(8));
      const found = query.getAll("in").map((path) => at(folders, row, path));
      if (found.some((one) => !one)) return null;
      query.delete("in");
      return `#/compare?${new URLSearchParams([["folders", found.map(({ id }) => id).join(",")], ...query])}`;
    }
    if (!href.startsWith("in/")) return null;
    const [path, step] = href.slice(3).split(/\/(step\/[\d,]+)$/);
    const other = at(folders, row, path);
    if (!other) return null;
    return step ? `#/folder/${other.id}/${step}` : `#/folder/${other.id}`;
  };
}

// ---- one folder

async function folder(main, { path }, data) {
  const id = path[1];
  let index = await data.index();
  const page = element("div", { class: "folder" });
  const plots = new Map(); // by section and title, so that new data keep what was chosen
  const folds = new Map(); // which parts were unfolded or folded by hand
  const shown = { title: "Folder", refresh, keys: { j: () => move(1, "a[href]", page), k: () => move(-1, "a[href]", page) },
    shortcuts: [[["j"], "Next link"], [["k"], "Previous link"], [["Enter"], "Open it"]] };
  let before = ""; // what is drawn

  async function refresh() {
    const [view, latest] = await Promise.all([data.folder(id), data.index()]);
    index = latest;
    const row = index.folders.find((one) => one.id === id) ?? { id, path: "", kind: view.kind, runs: 0, right: 0, scored: 0, tokens: 0 };
    shown.title = plain(view.title);
    for (const one of page.querySelectorAll("details[data-fold]")) folds.set(one.dataset.fold, one.open);
    const now = JSON.stringify([view, row, index.folders.length]);
    if (now !== before) redrawn(page, () => page.replaceChildren(...drawn(view, row)));
    before = now;
  }

  function drawn(view, row) {
    const link = linker(row, index.folders, new Set(view.steps));
    return [
      head(view, row, id),
      messages(view),
      facts(view.facts.length ? view.facts : rowFacts(row), link),
      view.sections.length > 3 ? contents(view.sections) : null,
      ...view.sections.map((section, number) => element("section", { class: "part", id: `part-${number}`, "aria-labelledby": `part-${number}-title` },
        element("h2", { id: `part-${number}-title` }, visible(section.title)),
        section.about ? element("p", { class: "soft about" }, visible(section.about)) : null,
        element("div", { class: section.parts.filter(({ type }) => type === "plot").length > 1 ? "panels" : "stack" },
          section.parts.map((part) => drawPart(part, `${section.title}/${part.title}`, link))))),
    ].filter((part) => part);
  }

  function drawPart(part, key, link) {
    switch (part.type) {
      case "plot": {
        const kept = plots.get(key);
        if (kept) kept.link = link;
        if (kept) kept.update(part);
        else plots.set(key, new Plot(part, { link }));
        return plots.get(key).element;
      }
      case "bars": return bars(part, link);
      case "funnel": return funnel(part, link);
      case "table": return table(part, key, link);
      case "lines": return fold(key, part.title, part.open, element("ul", { class: "texts" },
        part.lines.map((line) => element("li", {}, cell(line, link)))));
      default: return null;
    }
  }

  function table(part, key, link) {
    const counts = part.columns.map((_, place) => part.rows.some((row) => row[place]?.text) && part.rows.every((row) => !row[place]?.text || numeric(row[place].text)));
    const kind = (place) => (place && counts[place] ? "number" : null);
    const made = element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": plain(part.title || key.split("/")[0]) },
      element("table", {}, element("thead", {}, element("tr", {}, part.columns.map((name, place) => (name
        ? element("th", { scope: "col", class: kind(place) }, visible(name)) : element("td", {}))))),
        element("tbody", {}, part.rows.map((row) => element("tr", {}, row.map((one, place) =>
          element(place ? "td" : "th", place ? { class: kind(place) } : { scope: "row" }, cell(one, link))))))));
    return part.folded ? fold(key, part.title || plural(part.rows.length, "row"), false, made) : made;
  }

  function fold(key, title, open, ...children) {
    return element("details", { class: "fold-box", open: folds.get(key) ?? open, data: { fold: key } }, element("summary", {}, visible(title)), ...children);
  }

  await refresh();
  main.append(page);
  return shown;
}

function head(view, row, id) {
  const kind = KINDS[view.kind] ?? view.kind;
  return element("header", { class: "folder-head" },
    element("p", { class: "crumbs soft" }, element("a", { href: "#/folders" }, "Folders"), element("span", { "aria-hidden": "true" }, "›"),
      element("span", {}, visible(row.path || "."))),
    element("h1", {}, visible(view.title), kind ? element("span", { class: "badge", data: { kind: view.kind } }, kind) : null,
      row.live ? element("span", { class: "badge good" }, element("span", { class: "pulse" }), "running") : null),
    view.about ? element("p", { class: "about" }, visible(view.about)) : null,
    element("p", { class: "doors" },
      row.runs ? element("a", { class: "button", href: `#/runs?folder=${id}` }, plural(row.runs, "run")) : null,
      view.steps.length ? element("a", { class: "button", href: `#/folder/${id}/step/${view.steps.at(-1)}` }, `Groups of step ${view.steps.at(-1).toLocaleString("en")}`) : null,
      row.runs && view.kind !== "rl" ? element("a", { class: "button", href: `#/compare?folders=${id}` }, "Compare with …") : null));
}

function messages({ notices, problems }) {
  const box = (name, texts) => (texts.length ? element("ul", { class: `messages ${name}` }, texts.map((text) => element("li", {}, visible(text)))) : null);
  const made = [box("warning", problems), box("", notices)].filter((part) => part);
  return made.length ? element("div", {}, made) : null;
}

export function facts(found, link) {
  if (!found.length) return null;
  return element("dl", { class: "tiles" }, found.map(({ label, value, note, href }) => {
    const target = href ? link(href) : null;
    return element("div", {}, element("dt", {}, visible(label)),
      element("dd", {}, target ? element("a", { href: target }, visible(value)) : visible(value)),
      note ? element("dd", { class: "soft" }, visible(note)) : null);
  }));
}

/** For folders without a report. */
function rowFacts(row) {
  const found = [["Runs", row.runs.toLocaleString("en"), "", "runs?"]];
  if (row.scored) found.push(["Right", percent(row.right / row.scored), `${row.right} of ${plural(row.scored, "scored run")}`, "runs?outcome=right"]);
  if (row.tokens) found.push(["Tokens", row.tokens.toLocaleString("en"), "", ""]);
  return row.runs ? found.map(([label, value, note, href]) => ({ label, value, note, href })) : [];
}

function contents(sections) {
  return element("nav", { class: "contents", "aria-label": "Sections" }, sections.map(({ title }, number) =>
    element("button", { type: "button", class: "quiet small", click: () => {
      const part = document.getElementById(`part-${number}`);
      part.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    } }, visible(title))));
}

function cell({ text, href }, link) {
  const target = href ? link(href) : null;
  return target ? element("a", { href: target }, visible(text)) : visible(text);
}

function numeric(text) {
  return /^[-+−–]?[\d.,]* ?[%s×]?$/.test(text);
}

// ---- all folders

async function folders(main, { query }, data) {
  const chosen = new Set();
  const list = element("div", {});
  const kinds = element("div", { class: "kinds", role: "group", "aria-label": "Kinds of folders" });
  const compare = element("a", { class: "button primary", hidden: true });
  main.append(element("div", { class: "folder" },
    element("header", { class: "folder-head row" }, element("h1", {}, "Folders"), compare), kinds, list));
  let wanted = query.get("kind") ?? "";

  function offer() {
    compare.hidden = chosen.size < 2;
    compare.textContent = `Compare ${chosen.size} folders`;
    compare.href = `#/compare?folders=${[...chosen].join(",")}`;
  }

  async function refresh() {
    const { folders: rows } = await data.index();
    const counts = new Map();
    for (const { kind } of rows) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    kinds.hidden = counts.size < 2;
    kinds.replaceChildren(...[["", rows.length], ...counts].map(([kind, count]) => element("button", { type: "button", class: "quiet small",
      "aria-pressed": String(kind === wanted), click: () => {
        wanted = kind;
        refresh();
      } }, kind ? KINDS[kind] ?? kind : "All", element("span", { class: "soft" }, String(count)))));
    const shown = rows.filter(({ kind }) => !wanted || kind === wanted);
    const focus = document.activeElement?.closest?.("[data-folder]")?.dataset.folder;
    list.replaceChildren(shown.length ? table(shown) : element("p", { class: "empty soft" }, "There is no run folder here yet."));
    if (focus) list.querySelector(`[data-folder="${CSS.escape(focus)}"] a`)?.focus({ preventScroll: true });
  }

  function table(rows) {
    const names = ["", "Folder", "Kind", "Runs", "Right", "Tokens", "Changed"];
    return element("div", { class: "scroll" }, element("table", { class: "folder-list" },
      element("thead", {}, element("tr", {}, names.map((name) => (name
        ? element("th", { scope: "col", class: COUNTED.has(name) ? "number" : null }, name) : element("td", {}))))),
      element("tbody", {}, rows.map((row) => element("tr", { data: { folder: row.id } },
        element("td", {}, element("input", { type: "checkbox", checked: chosen.has(row.id), disabled: !row.runs, "aria-label": `Choose ${plain(row.path || ".")} to compare`,
          change: (event) => {
            if (event.currentTarget.checked) chosen.add(row.id);
            else chosen.delete(row.id);
            offer();
          } })),
        element("th", { scope: "row" }, element("a", { href: `#/folder/${row.id}` }, visible(row.path || ".")),
          row.live ? element("span", { class: "badge good" }, element("span", { class: "pulse" }), "running") : null),
        element("td", {}, KINDS[row.kind] ?? row.kind),
        element("td", { class: "number" }, row.runs ? element("a", { href: `#/runs?folder=${row.id}` }, row.runs.toLocaleString("en")) : ""),
        element("td", { class: "number" }, row.scored ? percent(row.right / row.scored) : ""),
        element("td", { class: "number" }, row.tokens ? row.tokens.toLocaleString("en") : ""),
        element("td", {}, row.updated ? moment(row.updated) : ""))))));
  }

  await refresh();
  return { title: "Folders", refresh, keys: rowKeys(list), shortcuts: [[["j"], "Next folder"], [["k"], "Previous folder"], [["Enter"], "Open it"]] };
}

const COUNTED = new Set(["Runs", "Right", "Tokens"]);

function rowKeys(list) {
  const move = (by) => {
    const links = [...list.querySelectorAll("tbody th a")];
    const here = links.indexOf(document.activeElement);
    links[here < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(here + by, 0), links.length - 1)]?.focus();
  };
  return { j: () => move(1), k: () => move(-1) };
}

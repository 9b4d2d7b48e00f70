// What is known about a run beside its steps: scores, usage, agents, other attempts, its place and meta.
import { element } from "./dom.js";
import { outcomeBadge, runAddress, score } from "./outcome.js";
import { block, copyText, duration, figure, plain, plural, short, visible } from "./text.js";

/** `agents` is the table with the bars of each agent. */
export function panels(record, agents) {
  return [
    panel("Scores", scores(record)),
    panel("Usage", usage(record)),
    panel("Agents", agents.rows.length > 1 ? agents : null),
    panel(`Other attempts · ${record.siblings.length}`, others(record.siblings, (row) => `attempt ${row.sample + 1}`), record.siblings.length > 0),
    panel(`The same task elsewhere · ${record.elsewhere.length}`, others(record.elsewhere, (row) => row.path || "·"), record.elsewhere.length > 0),
    panel("Place", place(record)),
    panel("Meta", meta(record), true, false),
  ].filter((one) => one !== null);
}

/** At the width of a phone, only the scores are unfolded. */
function panel(title, content, isThere = true, isOpen = true) {
  if (content === null || !isThere) return null;
  const wide = matchMedia("(min-width: 46rem)").matches;
  return element("details", { class: "panel", open: isOpen && (wide || title === "Scores") }, element("summary", {}, element("h2", {}, title)), content);
}

function facts(rows) {
  return element("dl", { class: "facts-list" }, rows.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value, title]) => element("div", { title }, element("dt", {}, name), element("dd", {}, value))));
}

function scores({ scores: found, row, problem }) {
  const rows = found.map(({ name, value, reason }) => element("li", {},
    element("span", { class: "score-name" }, visible(name)), element("span", { class: "score-value" }, value === null ? "unscored" : figure(value)),
    reason ? element("p", { class: "soft" }, visible(reason.slice(0, 600))) : null));
  const known = new Set(found.map(({ name }) => name));
  const rl = facts([["Reward", known.has("reward") ? null : figure(row.reward)], ["Advantage", known.has("advantage") ? null : figure(row.advantage)], ["RL step", row.step], ["Group", row.group],
    ["Trained on", row.learnt === null || row.learnt === undefined ? null : row.learnt ? "yes" : "no"]]);
  return element("div", {}, rows.length ? element("ul", { class: "scores" }, rows) : element("p", { class: "soft" }, "This run has no score."),
    rl.firstChild ? rl : null, problem ? element("p", { class: "remark", data: { kind: "repair" } }, visible(problem)) : null);
}

function usage({ usage: used, row, violations }) {
  const tokens = (count) => (count ? element("span", { title: plural(count, "token") }, short(count)) : null);
  return facts([
    ["Stop", plain(row.stop.replaceAll("_", " "), 40)], ["Time", used.seconds ? duration(used.seconds) : null], ["Tokens written", tokens(used.completion_tokens)],
    ["Tokens read", tokens(used.prompt_tokens)], ["of these cached", tokens(used.cached_tokens)], ["Model calls", used.model_calls || null],
    ["Tool calls", used.tool_calls || row.tool_calls || null], ["Tool errors", row.tool_errors || null], ["Repairs", row.repairs || null],
    ["Violations", violations.length || null], ["Cost", used.cost === null ? null : figure(used.cost)],
  ]);
}

function others(rows, words) {
  return element("ul", { class: "others" }, rows.slice(0, 40).map((row) => element("li", {}, element("a", { href: runAddress(row.id) },
    outcomeBadge(row.outcome), element("span", { class: "other-words" }, plain(words(row), 60), row.answer === null ? null : element("span", { class: "soft" }, ` ${plain(row.answer, 40)}`)),
    element("span", { class: "soft" }, score(row))))));
}

function place({ place: found, row, profile }) {
  const file = `${found.file ?? row.path}${found.line ? `:${found.line}` : ""}`;
  const copy = element("button", { type: "button", class: "quiet copy-place", title: "Copy", "aria-label": "Copy the place", click: () => copyText(file, copy) }, visible(file));
  return element("div", {}, copy, facts([["Profile", plain(profile.name, 60)], ["Benchmark", plain(row.benchmark ?? "", 60)], ["Family", plain(row.family ?? "", 60)], ["Run", row.id]]));
}

function meta({ meta: run, task }) {
  const found = { ...(Object.keys(run).length ? { run } : {}), ...(Object.keys(task.meta).length ? { task: task.meta } : {}), ...(task.files.length ? { files: task.files } : {}) };
  if (!Object.keys(found).length) return null;
  return block({ label: "meta", text: JSON.stringify(found, null, 2), tokens: null });
}

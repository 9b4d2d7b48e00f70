// One run as a row of the list; at the width of a phone, the style sheet makes a card of it.
import { element } from "./dom.js";
import { outcomeBadge, runAddress, score } from "./outcome.js";
import { duration, figure, plain, short, visible } from "./text.js";

const ANSWER = 90; // characters of an answer

/** `sort` is the field; `first` the direction of the first click; `when` shows the column only if a run has it. */
export const COLUMNS = [
  { title: "Outcome", class: "c-outcome", sort: "outcome", first: "", cell: (row) => outcomeBadge(row.outcome) },
  { title: "Task", class: "c-task", sort: "task", first: "", cell: taskCell },
  { title: "Stop", class: "c-stop", sort: "stop", first: "", cell: (row) => plain((row.stop ?? "").replaceAll("_", " "), 30) },
  { title: "Score", class: "c-number", sort: "score", when: (row) => row.score !== null, cell: (row) => score(row) },
  { title: "Reward", class: "c-number", sort: "reward", when: (row) => row.reward !== null, cell: (row) => figure(row.reward) },
  { title: "Advantage", class: "c-number c-wide", sort: "advantage", when: (row) => row.advantage !== null, cell: (row) => figure(row.advantage) },
  { title: "Steps", class: "c-number c-steps", sort: "steps", cell: (row) => row.steps },
  { title: "Tokens", class: "c-number", sort: "tokens", cell: (row) => counted(row.tokens, `${row.prompt_tokens?.toLocaleString("en")} read, ${row.completion_tokens?.toLocaleString("en")} written`) },
  { title: "Tools", class: "c-number", sort: "tool_calls", cell: toolCell },
  { title: "Time", class: "c-number c-time", sort: "seconds", cell: (row) => (row.seconds ? duration(row.seconds) : "") },
  { title: "Cost", class: "c-number", sort: "cost", when: (row) => row.cost !== null, cell: (row) => figure(row.cost) },
];

/** A body of the table: the run, and below it where the words of a search occur. */
export function drawRow(row, columns, agents, opening) {
  const hits = row.hits?.length ? element("tr", { class: "hit-row" }, element("td", { colspan: columns.length },
    element("ul", { class: "hits", "aria-label": "Hits" }, row.hits.map((hit) => hitLine(row, hit, agents, opening))))) : null;
  return element("tbody", { data: { id: row.id, outcome: row.outcome }, click: (event) => {
    if (event.target.closest("a, button") || String(getSelection())) return;
    opening();
    location.hash = runAddress(row.id);
  } }, element("tr", {}, columns.map((column) => element("td", { class: column.class, data: { title: column.title } }, column.cell(row, opening)))), hits);
}

function counted(count, title) {
  return count ? element("span", { title }, short(count)) : "";
}

function toolCell(row) {
  if (!row.tool_calls && !row.tool_errors) return "";
  return [String(row.tool_calls ?? ""), row.tool_errors ? element("span", { class: "errors", title: `${row.tool_errors} of them failed` }, ` ${row.tool_errors}✕`) : null];
}

function taskCell(row, opening) {
  const link = element("a", { class: "run-link", href: runAddress(row.id), click: opening },
    visible(row.question.slice(0, 300).trim() || row.task || "(no question)"));
  return [
    link,
    element("div", { class: "row-about" }, [answers(row), ...about(row)].filter((words) => words !== null).map((words) => element("span", {}, words))),
  ];
}

/** The answer, and the expected one where that is another. */
function answers(row) {
  if (row.answer === null && !row.expected) return null;
  if (row.answer === null && row.outcome === "running") return [element("span", { class: "soft" }, "expected "), element("span", { class: "expected" }, visible(row.expected.slice(0, ANSWER)))];
  const given = row.answer === null ? element("span", { class: "soft" }, "no answer") : element("span", { class: "given" }, visible(row.answer.slice(0, ANSWER).trim()));
  const differs = row.expected && row.outcome !== "right" && row.expected !== row.answer;
  return differs ? [given, element("span", { class: "soft" }, " expected "), element("span", { class: "expected" }, visible(row.expected.slice(0, ANSWER)))] : [given];
}

function about(row) {
  return [
    row.kind === "team" ? "recorded team" : null,
    plain(row.path || "·", 80),
    plain(row.task, 60),
    row.step === null ? null : `RL step ${row.step}`,
    row.sample ? `attempt ${row.sample + 1}` : null,
    row.family ? plain(row.family, 40) : null,
    row.repairs ? `${row.repairs} repaired` : null,
  ].filter((words) => words);
}

function hitLine(row, { where, step, agent, before, match, after }, agents, opening) {
  const known = agents[agent];
  const name = where === "question" ? "Question" : where === "observation" ? "Result" : plain(known?.title ?? agent ?? "Step", 40);
  return element("li", { data: { hue: known?.hue ?? "gray" } }, element("a", { href: runAddress(row.id, step), click: opening },
    element("span", { class: "hit-where" }, name), element("span", { class: "hit-text" }, visible(before), element("mark", {}, visible(match)), visible(after))));
}

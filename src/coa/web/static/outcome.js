// What runs have in every view: how they ended, in a word and a colour, and their numbers.
import { element, icon } from "./dom.js";
import { figure, plain } from "./text.js";

const KINDS = { right: "good", partly: "warn", wrong: "bad", unanswered: "warn", unscored: "", failed: "bad", running: "live" };
const ICONS = { right: "check", wrong: "cross", failed: "cross" };
export const OUTCOMES = Object.keys(KINDS);

/** "right", "wrong" and so on, as a small label. */
export function outcomeBadge(outcome) {
  const sign = outcome === "running" ? element("span", { class: "pulse" }) : ICONS[outcome] ? icon(ICONS[outcome]) : null;
  return element("span", { class: `badge outcome-badge ${KINDS[outcome] ?? ""}`, data: { outcome } }, sign, plain(outcome, 20));
}

export function score(row) {
  return row.score === null || row.score === undefined ? "" : figure(row.score);
}

export function runAddress(id, step = null) {
  return `#/run/${encodeURIComponent(id)}${step === null ? "" : `?step=${step}`}`;
}

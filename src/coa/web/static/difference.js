// Where two runs part: the first step that is not the same in both, and in it the first word.

/** The steps of a run from its events: who wrote what. The result of a tool is a step of its own; `card` is the number
 * that the page shows for it, which is that of the call. */
export function stepsOf(events) {
  const steps = [];
  const agents = new Map();
  const cards = new Map();
  for (const event of events) {
    if (event.type === "began") {
      agents.set(event.item, event.agent);
      cards.set(event.item, event.step ?? null);
    } else if (event.type === "done") steps.push({ item: event.item, card: cards.get(event.item) ?? null, agent: agents.get(event.item) ?? "", text: event.text.trim(), result: false });
    else if (event.type === "result") steps.push({ item: event.item, card: cards.get(event.item) ?? null, agent: agents.get(event.item) ?? "", text: event.block.text.trim(), result: true });
    else if (event.type === "note") steps.push({ item: null, card: event.step ?? null, agent: "", text: event.text.trim(), result: true });
  }
  return steps;
}

/** The first difference of two lists of steps: its place, why they differ, and the words; null if there is none.
 * A run that ends earlier than the other has no step at that place. */
export function firstDifference(left, right) {
  const most = Math.max(left.length, right.length);
  for (let at = 0; at < most; at += 1) {
    const [one, other] = [left[at] ?? null, right[at] ?? null];
    if (one === null || other === null) return { at, why: "end", left: one && begin(one.text), right: other && begin(other.text) };
    if (one.agent !== other.agent || one.result !== other.result) return { at, why: "agent", left: begin(one.text), right: begin(other.text) };
    if (one.text !== other.text) return { at, why: one.result ? "result" : "text", ...wordDifference(one.text, other.text) };
  }
  return null;
}

const BEFORE = 70;
const AFTER = 90;

function begin(text) {
  const word = /^\S*/.exec(text)[0];
  return { start: 0, before: "", word, after: cut(text.slice(word.length)) };
}

function cut(text) {
  return text.length > AFTER ? `${text.slice(0, AFTER)}…` : text;
}

/** The first word that differs in two texts, in its surroundings. `start` is its place in each text. */
export function wordDifference(left, right) {
  let same = 0;
  const least = Math.min(left.length, right.length);
  while (same < least && left[same] === right[same]) same += 1;
  // Back to where the word begins, so that a whole word is marked; it has the same beginning in both.
  let start = same;
  const inside = [left, right].some((text) => same < text.length && !/\s/.test(text[same]));
  while (inside && start > 0 && !/\s/.test(left[start - 1])) start -= 1;
  return { left: around(left, start), right: around(right, start) };
}

function around(text, start) {
  const gap = /^\s*/.exec(text.slice(start, start + 1000))[0].length;
  const from = start + gap;
  const word = /^\S*/.exec(text.slice(from, from + 1000))[0];
  const before = text.slice(Math.max(0, from - BEFORE), from);
  return { start: from, before: (from > BEFORE ? "…" : "") + before, word, after: cut(text.slice(from + word.length)) };
}

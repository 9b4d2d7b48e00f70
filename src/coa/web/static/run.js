// The page of one run: its whole trajectory. `main[data-run]` names it.
import { call } from "./api.js";
import { element, find } from "./dom.js";
import { complain, startFrame } from "./frame.js";
import { listen } from "./keyboard.js";
import { linked, paragraphs } from "./text.js";
import { Turn } from "./turn.js";

function fact(name, value) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value));
}

async function start() {
  startFrame();
  listen({});
  const id = find("#main").dataset.run;
  const record = await call("GET", `/page/runs/${encodeURIComponent(id)}`);
  const { run, before } = record;
  document.title = `${run.question.slice(0, 60)} · Run`;
  find("#question").append(...linked(run.question));
  find("#back").href = `/c/${encodeURIComponent(run.conversation)}`;
  find("#about").append(...[
    fact("Agent", run.agent), fact("Profile", run.profile.name),
    fact("Asked", new Date(run.created * 1000).toLocaleString()), fact("Run", run.id),
  ]);
  if (before.length) {
    find("#before").hidden = false;
    find("#before > div").append(...before.map(({ role, content }) =>
      element("div", { class: "said", data: { role } }, element("strong", {}, role), paragraphs(content))));
  }
  const turn = new Turn(record, () => pairs(before));
  find("#timeline").append(turn.timeline.element);
  document.body.dataset.ready = "";
  if (!turn.over) await turn.watch(new AbortController().signal, () => {});
}

/** Earlier questions with their answers, in the form that a turn has. */
function pairs(before) {
  const found = [];
  for (let at = 0; at + 1 < before.length; at += 1) {
    if (before[at].role === "user" && before[at + 1].role === "assistant") {
      found.push({ run: { question: before[at].content }, timeline: { answer: before[at + 1].content } });
    }
  }
  return found;
}

start().catch(complain);

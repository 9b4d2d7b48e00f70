// The page at /: ask, watch, stop, follow up.
import { ApiFailure, call } from "./api.js";
import { element, find, icon } from "./dom.js";
import { announce, complain, startFrame } from "./frame.js";
import { History } from "./history.js";
import { listen } from "./keyboard.js";
import { duration } from "./text.js";
import { Turn } from "./turn.js";

const box = find("#question");
const agents = find("#agent");
let offered = [];
let turns = [];
let conversation = null;
let watching = null; // {turn, abort} while a run goes on

const conversations = new History({
  open: (id) => show(id, true),
  gone: (id) => id === conversation && begin(true),
});

// ---- asking

async function ask(question) {
  const body = { agent: agents.value, question, previous: turns.at(-1)?.run.id ?? null };
  find("#send").disabled = true;
  let record;
  try {
    record = await call("POST", "/page/runs", body);
  } catch (error) {
    complain(error);
    draw();
    return;
  }
  box.value = "";
  if (conversation === null) {
    conversation = record.run.conversation;
    history.pushState(null, "", `/c/${encodeURIComponent(conversation)}`);
  }
  for (const turn of turns) turn.timeline.setFolded(true);
  const turn = add(record);
  turn.element.scrollIntoView({ block: "start" });
  announce("The agents are working.");
  watch(turn);
  conversations.mark(conversation);
  conversations.refresh().catch(complain);
}

function add(record) {
  const before = turns.slice();
  const turn = new Turn(record, () => before);
  turns.push(turn);
  find("#turns").append(turn.element);
  draw();
  return turn;
}

/** Follows a run to its end, in whichever conversation it is shown. */
async function watch(turn) {
  const abort = new AbortController();
  watching = { turn, abort };
  draw();
  let atEnd = true;
  const tick = setInterval(() => showNow(turn), 200);
  const measure = () => (atEnd = isAtEnd());
  addEventListener("scroll", measure, { passive: true });
  try {
    await turn.watch(abort.signal, () => {
      if (atEnd) toEnd();
    });
  } catch (error) {
    // The server forgets runs some time after their end; those that it has stored are in the conversation.
    if (error instanceof ApiFailure && error.status === 404) show(conversation, false);
    else if (!abort.signal.aborted) complain(error);
  } finally {
    clearInterval(tick);
    removeEventListener("scroll", measure);
    if (watching?.turn === turn) watching = null;
    draw();
    if (!abort.signal.aborted) {
      if (atEnd) toEnd();
      conversations.refresh().catch(complain);
    }
  }
}

function showNow(turn) {
  const acting = turn.timeline.element.querySelector(".chip[data-state=acting]");
  const words = turn.lost ? "Connection lost, trying again" : acting ? acting.childNodes[1].textContent : "Waiting";
  find("#now").replaceChildren(element("span", { class: "pulse" }), `${words} · ${duration(turn.elapsed)}`);
}

async function stop() {
  if (!watching) return;
  try {
    await call("POST", `/page/runs/${encodeURIComponent(watching.turn.run.id)}/cancel`);
  } catch (error) {
    complain(error);
  }
}

// ---- showing

function isAtEnd() {
  return innerHeight + scrollY >= document.documentElement.scrollHeight - 120;
}

function toEnd() {
  scrollTo({ top: document.documentElement.scrollHeight });
}

function draw() {
  const running = watching !== null;
  find("#welcome").hidden = turns.length > 0;
  document.body.toggleAttribute("data-empty", turns.length === 0);
  find("#stop").hidden = !running;
  find("#send").hidden = running;
  find("#send").disabled = running || !box.value.trim();
  agents.hidden = offered.length < 2 || turns.length > 0 || running;
  box.placeholder = turns.length ? "Ask a follow-up question" : "Ask a question";
  if (!running) find("#now").replaceChildren();
  const title = turns[0]?.run.question;
  document.title = title ? `${title.slice(0, 60)} · Chain of agents` : "Chain of agents";
  grow();
}

/** The box is as high as its text, up to the limit in the style sheet. */
function grow() {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

function leave() {
  watching?.abort.abort();
  watching = null;
  turns = [];
  find("#turns").replaceChildren();
}

/** An empty page, for a new conversation. */
function begin(push) {
  leave();
  conversation = null;
  if (push && location.pathname !== "/") history.pushState(null, "", "/");
  conversations.mark(null);
  draw();
  box.focus();
}

async function show(id, push) {
  let found;
  try {
    found = await call("GET", `/page/conversations/${encodeURIComponent(id)}`);
  } catch (error) {
    complain(error);
    begin(true);
    return;
  }
  leave();
  conversation = id;
  if (push) history.pushState(null, "", `/c/${encodeURIComponent(id)}`);
  for (const record of found.runs) add(record);
  for (const turn of turns.slice(0, -1)) turn.timeline.setFolded(true);
  if (offered.some((agent) => agent.name === turns.at(-1)?.run.agent)) agents.value = turns.at(-1).run.agent;
  conversations.mark(id);
  const last = turns.at(-1);
  if (last && !last.over) watch(last);
  draw();
  toEnd();
}

function route() {
  const [, id] = location.pathname.match(/^\/c\/([^/]+)$/) ?? [];
  return id ? show(decodeURIComponent(id), false) : begin(false);
}

// ---- the first page

function introduce() {
  const agent = offered.find(({ name }) => name === agents.value);
  if (!agent) return;
  find("#about").textContent = agent.note || agent.profile.about;
  const known = new Map(Object.values(agent.profile.agents).map((one) => [one.title, one]));
  const cast = [...known.values()].map(({ title, hue, does }) =>
    element("li", { class: "chip", data: { hue, state: "acted" }, title: does }, element("span", { class: "dot" }), title));
  find("#team").replaceChildren(element("ul", { class: "cast", "aria-label": "Agents" }, cast));
  find("#examples").replaceChildren(...agent.examples.map((example) => element("li", {},
    element("button", { type: "button", click: () => ask(example) }, example))));
}

async function start() {
  startFrame();
  find("#new").prepend(icon("plus"));
  find("#send").append(icon("send"));
  find("#stop").prepend(icon("stop"));
  find("#to-end").append(icon("fold"));
  find("#new").addEventListener("click", () => {
    if (conversations.shown) conversations.show(false);
    begin(true);
  });
  find("#stop").addEventListener("click", stop);
  find("#to-end").addEventListener("click", toEnd);
  addEventListener("scroll", () => (find("#to-end").hidden = isAtEnd() || !turns.length), { passive: true });
  addEventListener("popstate", route);
  agents.addEventListener("change", introduce);
  box.addEventListener("input", draw);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    find("#ask").requestSubmit();
  });
  find("#ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (watching === null && box.value.trim()) ask(box.value.trim());
  });
  listen({
    "/": () => box.focus(),
    n: () => begin(true),
    Escape: () => {
      if (conversations.shown) conversations.show(false);
      else if (watching) stop();
      else document.activeElement?.blur();
    },
  });
  ({ agents: offered } = await call("GET", "/page/agents"));
  agents.replaceChildren(...offered.map(({ name }) => element("option", { value: name }, name)));
  introduce();
  await Promise.all([conversations.refresh(), route()]);
  document.body.dataset.ready = "";
}

start().catch(complain);

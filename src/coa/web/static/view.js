// The viewer: which view the address names, the header, the keys, and what changes while the page is open.
import { element, find } from "./dom.js";
import { announce, complain, startFrame, wording } from "./frame.js";
import { listen } from "./keyboard.js";
import { fillAll } from "./pieces.js";
import { visible } from "./text.js";
import { leave } from "./trail.js";
import { ViewData } from "./view-data.js";

const TABS = [["runs", "Runs"], ["folders", "Folders"], ["compare", "Compare"], ["findings", "Findings"], ["problems", "Problems"]];
const PART_OF = { run: "runs", folder: "folders" };

/** The module of a view. It is loaded when it is first shown. */
function moduleOf(path) {
  switch (path[0]) {
    case "run": return import("./view-run.js");
    case "folder": return path[2] === "step" ? import("./view-rl.js") : import("./view-folder.js");
    case "folders": return import("./view-folder.js");
    case "compare": return import("./view-compare.js");
    case "findings": return import("./view-findings.js");
    case "problems": return import("./view-problems.js");
    case "runs": return import("./view-list.js");
    default: throw Object.assign(new Error("No view has this address."), { status: 404 });
  }
}

const data = new ViewData();
let shown = { leave() {} }; // what the current view returned
let leftRun = null; // the run whose page was shown before
let turn = 0; // the number of the newest navigation: an older one that is still loading is dropped

/** Goes to an address of the viewer, such as `#/run/4f2a?step=3`. */
export function go(hash) {
  location.hash = hash;
}

/** `#/run/4f2a?step=3` as { path: ["run", "4f2a"], query }. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter((part) => part).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { path: parts.length ? parts : ["runs"], query: new URLSearchParams(query) };
}

async function route() {
  if (location.hash === "#main") return; // the link for skipping the header
  const number = ++turn;
  const { path, query } = parse(location.hash);
  const page = element("div", { class: "view-page", data: { view: path[0] } });
  document.body.removeAttribute("data-ready");
  mark(path[0]);
  let made;
  try {
    const view = await moduleOf(path);
    if (number !== turn) return;
    shown.leave?.();
    shown = {};
    find("#main").replaceChildren(page);
    scrollTo(0, 0);
    made = (await view.show(page, { path, query }, data)) ?? {};
  } catch (error) {
    if (number !== turn) return;
    if (!page.isConnected) {
      shown.leave?.();
      shown = {};
      find("#main").replaceChildren(page);
    }
    made = { title: "Not shown", refresh: error.status === 404 ? later() : null }; // it may not be indexed yet
    page.replaceChildren(failure(error, path));
  }
  if (number !== turn) return void made.leave?.();
  shown = made;
  const left = leftRun;
  leftRun = null;
  name(shown.title);
  if (number > 1 && !find("#main").contains(document.activeElement)) find("#main").focus({ preventScroll: true });
  if (left && path[0] !== "run") made.reveal?.(left);
  document.body.dataset.ready = "";
}

/** Looks again when runs were added or taken away, not whenever one of them goes on. */
function later() {
  const state = () => JSON.stringify([data.current?.facets.outcomes.running, data.current?.folders.map(({ id, runs }) => [id, runs])]);
  const before = state();
  return () => (state() === before ? null : route());
}

export function name(title) {
  const words = `${title || "Runs"} · coa view`;
  if (document.title !== words) announce(title || "Runs");
  document.title = words;
}

function failure(error, path) {
  const missing = error.status === 404;
  return element("div", { class: "empty", role: "alert" },
    element("h1", {}, missing ? "There is nothing here." : "This cannot be shown."),
    element("p", {}, missing && path[0] === "run" ? "The run may have been deleted, or its file was moved." : visible(wording(error))),
    element("p", {}, element("a", { href: "#/runs" }, "All runs")));
}

// ---- the header

function mark(first) {
  const current = PART_OF[first] ?? first;
  for (const tab of find("#tabs").children) {
    if (tab.dataset.tab === current) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
}

function drawTabs() {
  find("#tabs").replaceChildren(...TABS.map(([key, words]) =>
    element("a", { href: `#/${key}`, data: { tab: key } }, words, element("span", { class: "count" }))));
}

function drawHeader(index) {
  const counts = { problems: index.problems_count };
  for (const tab of find("#tabs").children) {
    const count = counts[tab.dataset.tab];
    tab.lastChild.textContent = count ? count.toLocaleString("en") : "";
  }
  drawProgress(index.progress);
}

function drawProgress(progress) {
  const place = find("#indexing");
  place.hidden = !progress?.busy;
  if (place.hidden) return void place.replaceChildren();
  const share = progress.bytes_total ? Math.min(progress.bytes / progress.bytes_total, 1) : 0;
  const words = `Indexing ${Math.floor(share * 100)} %`;
  const title = `${progress.files.toLocaleString("en")} of ${progress.files_total.toLocaleString("en")} files, ${progress.runs.toLocaleString("en")} runs so far`;
  if (!place.firstChild) place.append(element("progress", { max: "1", "aria-label": "Indexing" }), element("span", {}));
  place.firstChild.value = share;
  place.lastChild.textContent = words;
  place.title = title;
}

function drawLive(isLost) {
  const place = find("#live");
  place.hidden = false;
  place.dataset.state = isLost ? "lost" : "live";
  place.title = isLost ? "The server does not answer; trying again." : "The page follows the files as they grow.";
  place.replaceChildren(element("span", { class: "pulse" }), isLost ? "Connection lost" : "Live");
}

// ---- what changes

let refreshing = false;
let wanted = false;

/** One refresh at a time, and at most one every second. */
async function refresh() {
  if (refreshing) {
    wanted = true;
    return;
  }
  refreshing = true;
  do {
    wanted = false;
    try {
      drawHeader(await data.index({ fresh: true }));
      await shown.refresh?.();
      if (shown.title) name(shown.title);
    } catch (error) {
      if (!(error instanceof TypeError)) complain(error); // a lost connection is shown in the header
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  } while (wanted);
  refreshing = false;
}

async function follow() {
  const leaving = new AbortController();
  addEventListener("pagehide", () => leaving.abort());
  let revision = data.current.revision;
  for await (const change of data.changes(leaving.signal, drawLive)) {
    drawLive(false);
    drawProgress(change.progress);
    if (change.revision !== revision) {
      revision = change.revision;
      refresh();
    }
  }
}

// ---- paper

/** Everything is unfolded for the time of printing. */
function printing() {
  let opened = [];
  addEventListener("beforeprint", () => {
    fillAll(find("#main"));
    opened = [...find("#main").querySelectorAll("details:not([open])")];
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of opened) fold.open = false;
    opened = [];
  });
}

// ---- keys

const GLOBAL = [[["?"], "These shortcuts"]];

function shortcuts() {
  return [...(shown.shortcuts ?? []), ...GLOBAL];
}

function keys() {
  return {
    ...shown.keys,
    Escape: (event) => {
      const box = event.target.closest?.("input, textarea, select");
      if (box) box.blur();
      else shown.keys?.Escape?.(event);
    },
  };
}

async function start() {
  startFrame({ shortcuts });
  listen(keys, { shortcuts });
  printing();
  drawTabs();
  find("#loading")?.remove();
  addEventListener("hashchange", ({ oldURL }) => {
    const before = new URL(oldURL).hash;
    const { path } = parse(before);
    if (path[0] === "run") leftRun = path[1];
    else if (before !== "#main" && parse(location.hash).path[0] === "run") leave(before);
    route();
  });
  const index = await data.index();
  drawHeader(index);
  await route();
  if (!index.bundle) await follow();
}

start().catch((error) => {
  find("#main").replaceChildren(failure(error, []));
  complain(error);
});

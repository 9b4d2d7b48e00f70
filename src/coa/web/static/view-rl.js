// The groups of one step of reinforcement learning: the attempts at each task side by side.
import { element } from "./dom.js";
import { outcomeBadge } from "./outcome.js";
import { Plot } from "./plot.js";
import { duration, plain, plural, visible } from "./text.js";
import { facts, redrawn } from "./view-folder.js";

const FILTERS = [
  ["", "All", () => true],
  ["learnt", "Learnt from", (group) => group.learnt],
  ["mixed", "Right and wrong", (group) => new Set(group.attempts.map(({ outcome }) => outcome === "right")).size > 1],
  ["right", "All right", (group) => group.attempts.every(({ outcome }) => outcome === "right")],
  ["wrong", "None right", (group) => !group.attempts.some(({ outcome }) => outcome === "right")],
];

export async function show(main, { path, query }, data) {
  const [, id, , number] = path;
  const page = element("div", { class: "folder rl" });
  const top = element("div", { class: "folder rl" });
  main.append(page);
  let filter = query.get("groups") ?? "";
  let view = null;
  let plot = null;
  const list = element("div", { class: "groups" });
  const filters = element("div", { class: "kinds", role: "group", "aria-label": "Which groups" });
  const watcher = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) if (isIntersecting) fill(target);
  }, { rootMargin: "1200px" });
  const bodies = new WeakMap();

  const go = (step) => step !== null && step !== undefined && (location.hash = `#/folder/${id}/step/${step}${filter ? `?groups=${filter}` : ""}`);

  async function refresh() {
    const latest = await data.folderStep(id, number);
    const same = JSON.stringify(view?.groups) === JSON.stringify(latest.groups);
    view = latest;
    redrawn(top, head);
    if (!same) redrawn(page, draw);
  }

  function head() {
    const link = (href) => (href.startsWith("step/") ? `#/folder/${id}/${href}` : null);
    if (view.curve && !plot) plot = new Plot(view.curve, { link, mark: view.at, heading: "h2" });
    else if (view.curve) plot.update(view.curve);
    const door = (step, words, key) => element(step === null ? "span" : "a", { class: "button", href: step === null ? null : `#/folder/${id}/step/${step}`,
      "aria-disabled": step === null ? "true" : null, role: step === null ? "link" : null, title: `Key ${key}` }, words);
    top.replaceChildren(
      element("header", { class: "folder-head" },
        element("p", { class: "crumbs soft" }, element("a", { href: "#/folders" }, "Folders"), element("span", { "aria-hidden": "true" }, "›"),
          element("a", { href: `#/folder/${id}` }, visible(view.folder?.path || ".")), element("span", { "aria-hidden": "true" }, "›"), `Step ${view.step.toLocaleString("en")}`),
        element("h1", {}, `Step ${view.step.toLocaleString("en")}`, " ", element("span", { class: "soft of" }, view.first === view.last ? "the only step with groups" : `groups are kept of steps ${view.first.toLocaleString("en")} to ${view.last.toLocaleString("en")}`)),
        element("p", { class: "doors" }, door(view.previous, "← Previous", "p"), door(view.next, "Next →", "n"))),
      ...(view.problems.length ? [element("ul", { class: "messages warning" }, view.problems.map((text) => element("li", {}, visible(text))))] : []),
      facts(view.facts, link) ?? "", ...(plot && view.curve.x_ticks.length && view.at !== null ? [plot.element] : []));
  }

  function draw() {
    watcher.disconnect();
    filters.replaceChildren(...FILTERS.map(([key, words, test]) => element("button", { type: "button", class: "quiet small",
      "aria-pressed": String(key === filter), click: () => {
        filter = key;
        draw();
      } }, words, element("span", { class: "soft" }, String(view.groups.filter(test).length)))));
    const test = FILTERS.find(([key]) => key === filter)?.[2] ?? (() => true);
    const wanted = view.groups.filter(test);
    list.replaceChildren(...(wanted.length ? wanted.map(group) : [element("p", { class: "empty soft" }, "No group is like this.")]));
    for (const made of list.children) if (bodies.has(made)) watcher.observe(made);
  }

  function group(one) {
    const made = element("section", { class: "group", tabindex: "-1", "aria-label": `Group ${one.number}: ${plain(one.question)}` },
      element("header", {},
        element("h2", {}, visible(one.question)),
        element("p", { class: "soft facts" },
          element("span", {}, `group ${one.number}`),
          element("span", {}, element("a", { href: `#/runs?${new URLSearchParams({ folder: id, task: one.task })}` }, visible(one.task))),
          one.family ? element("span", {}, visible(one.family.replaceAll("_", " "))) : null,
          one.expected.length ? element("span", {}, "right: ", visible(one.expected.join(" | "))) : null,
          one.mean === null ? null : element("span", {}, `reward ${number3(one.mean)} ± ${number3(one.spread)}`),
          one.missing ? element("span", { class: "warn" }, `${plural(one.missing, "attempt")} failed or unscored, not kept`) : null),
        element("p", { class: "verdict" }, one.learnt ? element("span", { class: "badge good" }, "learnt from") : element("span", { class: "badge" }, "not learnt from"),
          one.why ? element("span", { class: "soft" }, one.why) : null)));
    const row = element("div", { class: "attempts", tabindex: "0", role: "group", "aria-label": `Attempts of group ${one.number}` });
    made.append(row);
    bodies.set(made, { row, one });
    return made;
  }

  function fill(made) {
    const body = bodies.get(made);
    if (!body || body.row.childElementCount) return;
    const most = Math.max(...body.one.attempts.map(({ advantage }) => Math.abs(advantage ?? 0)), 1e-9);
    body.row.append(...body.one.attempts.map((attempt) => column(attempt, most)));
    watcher.unobserve(made);
  }

  /** `by` groups down; the group that has the focus, or else the one at the top of the window, is where it starts. */
  function move(by) {
    const all = [...list.querySelectorAll(".group")];
    if (!all.length) return;
    const focused = all.indexOf(document.activeElement.closest?.(".group"));
    const next = all[focused < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(focused + by, 0), all.length - 1)];
    fill(next);
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "start" });
  }

  function aside(by) {
    const here = document.activeElement.closest?.(".group") ?? list.querySelector(".group");
    if (!here) return;
    fill(here);
    const all = [...here.querySelectorAll(".attempt")];
    const focused = all.indexOf(document.activeElement.closest?.(".attempt"));
    const next = all[focused < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(focused + by, 0), all.length - 1)];
    next?.focus({ preventScroll: true });
    next?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  function open() {
    const target = document.activeElement.closest?.(".attempt")?.querySelector("a.open");
    if (!target || document.activeElement.matches("a, button, summary")) return false;
    location.hash = target.getAttribute("href");
    return true;
  }

  /** The attempt that was opened from here, when one comes back. */
  function reveal(run) {
    const made = [...list.children].find((one) => bodies.get(one)?.one.attempts.some((attempt) => attempt.id === run));
    if (!made) return;
    fill(made);
    const link = [...made.querySelectorAll("a.open")].find((one) => one.getAttribute("href") === `#/run/${run}`);
    link?.closest(".attempt").focus({ preventScroll: true });
    made.scrollIntoView({ block: "start" });
  }

  page.append(top, filters, list);
  await refresh();
  const free = (action) => (event) => (event.target.closest?.(".plot-area") ? false : action());
  return {
    title: `Step ${number}`, refresh, reveal, leave: () => watcher.disconnect(),
    keys: { j: () => move(1), k: () => move(-1), h: () => aside(-1), l: () => aside(1), n: () => go(view.next), p: () => go(view.previous),
      ArrowDown: free(() => move(1)), ArrowUp: free(() => move(-1)), ArrowLeft: free(() => aside(-1)), ArrowRight: free(() => aside(1)), Enter: open },
    shortcuts: [[["j", "k"], "Next and previous group"], [["h", "l"], "Previous and next attempt"], [["Enter"], "Open the attempt"], [["n", "p"], "Next and previous step"]],
  };
}

function column(attempt, most) {
  const { advantage } = attempt;
  const sign = advantage === null ? "none" : advantage > 0 ? "up" : advantage < 0 ? "down" : "none";
  const bar = element("span", { class: "advantage-bar", data: { sign }, "aria-hidden": "true" }, element("span", {}));
  bar.firstChild.style.setProperty("width", `${(50 * Math.abs(advantage ?? 0)) / most}%`);
  const ribbon = element("div", { class: "ribbon", role: "img", "aria-label": `Agents: ${plain(attempt.ribbon.map(({ agent }) => agent).join(", "), 400)}` },
    attempt.ribbon.map(({ agent, hue, kind, size }) => {
      const piece = element("span", { data: { hue, kind }, title: `${plain(agent)}, ${plural(size, "token")}` });
      piece.style.setProperty("flex-grow", String(Math.max(size, 1)));
      return piece;
    }));
  return element("article", { class: "attempt", tabindex: "-1", data: { outcome: attempt.outcome }, "aria-label": `Attempt ${attempt.sample + 1}: ${attempt.outcome}` },
    element("header", {}, outcomeBadge(attempt.outcome),
      element("a", { class: "open", href: `#/run/${attempt.id}` }, `Attempt ${attempt.sample + 1}`)),
    ribbon,
    element("div", { class: "advantage", data: { sign } }, element("span", { class: "soft" }, "advantage"),
      element("strong", {}, advantage === null ? "–" : signed(advantage)), bar),
    element("p", { class: "given" }, attempt.answer === null ? element("span", { class: "soft" }, "no answer") : visible(attempt.answer.trim() || "(empty)")),
    element("dl", { class: "worth" },
      attempt.terms.flatMap(({ name, value, note }) => [element("dt", {}, name, note ? element("span", { class: "soft" }, visible(` ${note}`)) : null), element("dd", {}, signed(value))]),
      attempt.reward === null ? null : [element("dt", { class: "sum" }, "reward"), element("dd", { class: "sum" }, number3(attempt.reward))]),
    attempt.reason ? element("p", { class: "soft reason" }, visible(attempt.reason)) : null,
    attempt.cuts.length ? element("ul", { class: "cuts", "aria-label": "What was cut" }, attempt.cuts.map((text) => element("li", {}, visible(text)))) : null,
    element("p", { class: "soft facts" }, [
      plural(attempt.tokens, "token"), plural(attempt.tool_calls, "tool call"),
      attempt.tool_errors ? plural(attempt.tool_errors, "tool error") : null, attempt.seconds ? duration(attempt.seconds) : null,
    ].filter((text) => text).map((text) => element("span", {}, text))));
}

function number3(value) {
  return value === null ? "–" : String(Number(value.toPrecision(3)));
}

function signed(value) {
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${Number(Math.abs(value).toPrecision(3))}`;
}

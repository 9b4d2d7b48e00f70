// What the scanners found: counts for each, and the findings with the step where they are.
import { element, icon } from "./dom.js";
import { move } from "./keyboard.js";
import { plural, visible } from "./text.js";

const MORE = 200; // as many findings as one answer of the server has

export async function show(main, { query }, data) {
  const scanner = query.get("scanner") ?? "";
  const counts = element("div", {});
  const list = element("div", {});
  main.append(element("h1", {}, "Findings"), counts, list);
  let shown = MORE;

  async function refresh() {
    const found = await data.findings({ scanner });
    const findings = found.findings.filter((one) => !scanner || one.scanner === scanner);
    while (findings.length < Math.min(shown, found.total)) {
      const next = await data.findings({ scanner, offset: findings.length });
      const more = next.findings.filter((one) => !scanner || one.scanner === scanner).slice(0, MORE);
      if (!more.length || data.isBundle) break;
      findings.push(...more);
    }
    counts.replaceChildren(...drawCounts(found, scanner));
    list.replaceChildren(...drawList(findings.slice(0, shown), found.total, () => {
      shown += MORE;
      return refresh();
    }));
  }
  await refresh();
  return {
    title: scanner ? `Findings: ${scanner}` : "Findings", refresh,
    keys: { j: () => move(1), k: () => move(-1), Enter: open },
    shortcuts: [[["j"], "Next finding"], [["k"], "Previous finding"], [["Enter"], "Open the run at the step"]],
    reveal: (run) => {
      const found = [...list.querySelectorAll(".finding")].find((one) => one.dataset.run === run);
      found?.focus({ preventScroll: true });
      found?.scrollIntoView({ block: "center" });
    },
  };
}

function open() {
  if (!document.activeElement.matches(".finding")) return false;
  location.hash = document.activeElement.querySelector("a").getAttribute("href");
}

function drawCounts({ scanned, by_scanner: scanners }, chosen) {
  const names = Object.keys(scanners).sort((one, other) => scanners[other].runs - scanners[one].runs);
  const about = element("p", { class: "soft" }, `${plural(scanned, "run")} scanned. `,
    "Scanners look for what is worth reading; a finding is not a verdict.");
  if (!names.length) return [about];
  const largest = Math.max(...names.map((name) => scanners[name].runs), 1);
  const rows = names.map((name) => {
    const { runs, findings } = scanners[name];
    const bar = element("span", { class: "bar" });
    bar.style.setProperty("--share", runs / largest);
    return element("tr", {},
      element("th", { scope: "row" }, element("a", { href: name === chosen ? "#/findings" : `#/findings?scanner=${encodeURIComponent(name)}`,
        "aria-current": name === chosen ? "true" : null }, visible(words(name)))),
      element("td", { class: "number" }, element("a", { href: `#/runs?finding=${encodeURIComponent(name)}` }, plural(runs, "run"))),
      element("td", { class: "number" }, plural(findings, "finding")),
      element("td", { class: "bar-cell" }, bar));
  });
  return [about, element("table", { class: "plain scanners" }, element("caption", { class: "unseen" }, "Findings by scanner"),
    element("thead", {}, element("tr", {}, ["Scanner", "Runs", "Findings", "Share"].map((title) =>
      element("th", { scope: "col", class: title === "Share" ? "unseen-cell" : null }, title)))),
    element("tbody", {}, rows))];
}

function drawList(findings, total, more) {
  if (!findings.length) return [element("p", { class: "soft" }, "Nothing was found.")];
  const items = findings.map(({ run, step, scanner, severity, message, task, path }) => {
    const place = step === null ? "" : `?step=${step}`;
    return element("li", { class: "finding step", tabindex: "-1", data: { severity, run } },
      element("span", { class: `badge ${severity === "info" ? "" : severity === "error" ? "bad" : "warn"}` },
        severity === "error" ? icon("cross") : null, severity),
      element("span", { class: "finding-text" },
        element("a", { href: `#/run/${encodeURIComponent(run)}${place}` }, visible(task), step === null ? "" : ` · step ${step}`),
        path ? element("span", { class: "soft" }, visible(path)) : null,
        element("span", { class: "soft" }, visible(words(scanner))),
        element("span", {}, visible(message))));
  });
  const rest = findings.length < total
    ? element("button", { type: "button", click: more }, `Show more of ${plural(total, "finding")}`)
    : null;
  return [element("ol", { class: "findings", "aria-label": "Findings" }, items), ...(rest ? [rest] : [])];
}

function words(name) {
  return name.replaceAll("_", " ");
}

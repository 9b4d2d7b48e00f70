// The two questions that a server would answer, for a bundle: which runs match, and how folders compare. The rows and
// texts of all runs are in numbered files; the meaning of every filter is that of coa/view.

const DEFAULT_LIMIT = 50;
const FINDINGS = 200;
const AROUND = 60; // characters before and after a hit
const MOST_HITS = 3;

export class Bundle {
  #rows = null;

  /** `get` fetches a file of the bundle. */
  constructor(get, index) {
    this.get = get;
    this.index = index;
  }

  async rows() {
    this.#rows ??= this.#all("rows").catch((error) => {
      this.#rows = null;
      throw error;
    });
    return this.#rows;
  }

  async runs(query) {
    const offset = Number(query.get("offset") ?? 0);
    const limit = Number(query.get("limit") ?? DEFAULT_LIMIT);
    let found = (await this.rows()).filter(await this.#filter(query));
    const terms = termsOf(query.get("q") ?? "");
    if (terms.length) found = await this.#search(found, terms, query.get("in"));
    found = sorted(found, query.get("sort") ?? "");
    return { total: found.length, rows: found.slice(offset, offset + limit), offset };
  }

  /** The tasks that all of these folders have. A folder solves a task if at least half of its attempts are right; the
   * pattern of a task has a digit for each folder. `only` is a pattern, or `disagree`. */
  async compare(query) {
    const ids = (query.get("folders") ?? "").split(",").filter((id) => id);
    const folders = ids.map((id) => this.index.folders.find((folder) => folder.id === id));
    if (folders.some((folder) => !folder)) throw new Error("there is no such folder");
    const tasks = new Map();
    for (const row of await this.rows()) {
      const place = ids.indexOf(row.folder);
      if (place < 0) continue;
      if (!tasks.has(row.task)) tasks.set(row.task, { task: row.task, question: row.question, pattern: "", runs: ids.map(() => []) });
      tasks.get(row.task).runs[place].push(row);
    }
    const all = [...tasks.values()].filter(({ runs }) => runs.every((attempts) => attempts.length)).sort((one, other) => (one.task < other.task ? -1 : 1));
    for (const task of all) {
      task.runs.forEach((attempts) => attempts.sort((one, other) => one.sample - other.sample));
      task.pattern = task.runs.map((attempts) => (2 * attempts.filter((row) => row.outcome === "right").length >= attempts.length ? "1" : "0")).join("");
    }
    const only = query.get("only") ?? "";
    const isPattern = only.length === ids.length && /^[01]+$/.test(only);
    const found = all.filter(({ pattern }) => (only === "disagree" ? new Set(pattern).size > 1 : !isPattern || pattern === only));
    const patterns = {};
    for (const { pattern } of all) patterns[pattern] = (patterns[pattern] ?? 0) + 1;
    const counts = { tasks: all.length, patterns, disagree: all.filter(({ pattern }) => new Set(pattern).size > 1).length,
      all_right: patterns["1".repeat(ids.length)] ?? 0, all_wrong: patterns["0".repeat(ids.length)] ?? 0 };
    const offset = Number(query.get("offset") ?? 0);
    return { folders, counts, total: found.length, offset, tasks: found.slice(offset, offset + Number(query.get("limit") ?? DEFAULT_LIMIT)) };
  }

  async findings(query) {
    const all = await this.get("api/findings.json");
    const found = query.get("scanner") ? all.findings.filter((one) => one.scanner === query.get("scanner")) : all.findings;
    const offset = Number(query.get("offset") ?? 0);
    return { ...all, total: query.get("scanner") ? found.length : all.total, offset, findings: found.slice(offset, offset + FINDINGS) };
  }

  async #all(name) {
    const numbers = Array.from({ length: this.index.row_files ?? 0 }, (_, number) => number);
    return (await Promise.all(numbers.map((number) => this.get(`api/${name}-${number}.json`)))).flat();
  }

  async #filter(query) {
    const tests = [];
    for (const name of ["outcome", "stop"]) {
      const wanted = query.get(name)?.split(",");
      if (wanted) tests.push((row) => wanted.includes(row[name]));
    }
    for (const name of ["folder", "benchmark", "family", "task"]) {
      const wanted = query.get(name);
      if (wanted) tests.push((row) => row[name] === wanted);
    }
    for (const name of ["step", "group", "sample"]) {
      const wanted = query.get(name);
      if (wanted) tests.push((row) => row[name] === Number(wanted));
    }
    for (const [name, field] of [["tool_error", "tool_errors"], ["repaired", "repairs"], ["learnt", "learnt"]]) {
      if (["1", "true"].includes(query.get(name))) tests.push((row) => row[field] > 0);
    }
    const agent = query.get("agent");
    if (agent) tests.push((row) => row.agents.includes(agent));
    if (query.get("min_tokens")) tests.push((row) => row.tokens >= Number(query.get("min_tokens")));
    if (query.get("max_tokens")) tests.push((row) => row.tokens <= Number(query.get("max_tokens")));
    const scanner = query.get("finding");
    if (scanner) {
      const { findings } = await this.get("api/findings.json");
      const runs = new Set(findings.filter((one) => one.scanner === scanner).map((one) => one.run));
      tests.push((row) => runs.has(row.id));
    }
    return (row) => tests.every((test) => test(row));
  }

  /** File after file. The newest 200 files stay in memory (view-data.js), so that the next letter typed is answered at once. */
  async #search(rows, terms, where) {
    const wanted = new Map(rows.map((row) => [row.id, row]));
    const found = new Map();
    for (let number = 0; number < (this.index.row_files ?? 0); number += 1) {
      for (const [id, question, steps, observations] of await this.get(`api/text-${number}.json`)) {
        const row = wanted.get(id);
        const hits = row && hitsIn(pieces(question, steps, observations, where), terms);
        if (hits) found.set(id, { ...row, hits });
      }
    }
    return rows.filter((row) => found.has(row.id)).map((row) => found.get(row.id));
  }
}

/** The texts of a run: the question, then steps and observations, each either one text or [index, agent, text] rows. */
function pieces(question, steps, observations, scope) {
  const found = [];
  for (const [name, where, texts] of [["question", "question", question], ["steps", "step", steps], ["observations", "observation", observations]]) {
    if (scope && scope !== name) continue;
    if (typeof texts === "string") found.push({ where, step: null, agent: null, text: texts });
    else for (const [step, agent, text] of texts ?? []) found.push({ where, step, agent, text });
  }
  return found;
}

const IDEOGRAPH = /[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]/;

/** Words and "phrases in quotes", as patterns: all have to occur, as whole words; the last one may go on. */
export function termsOf(text) {
  const found = [...text.matchAll(/"([^"]*)"|(\S+)/g)];
  return found.map(([, phrase, word], place) => {
    const parts = fold(phrase ?? word).match(/[\p{L}\p{N}]+/gu);
    if (!parts) return null;
    const isOpen = word !== undefined && place === found.length - 1 && !/[ "]$/.test(text);
    const whole = !IDEOGRAPH.test(parts.join(""));
    const end = isOpen || !whole ? "" : "(?![\\p{L}\\p{N}])";
    return new RegExp(`${whole ? "(?<![\\p{L}\\p{N}])" : ""}${parts.join("[^\\p{L}\\p{N}]+")}${end}`, "u");
  }).filter((term) => term);
}

/** Without capitals and accents, and as long as the text, so that places in it are places in the text. */
function fold(text) {
  const lower = text.toLowerCase();
  const even = lower.length === text.length ? lower : text;
  return even.replace(/[\u00c0-\u024f\u1e00-\u1eff]/g, (letter) => letter.normalize("NFD")[0]);
}

/** Where the terms occur, or null if one of them does not. */
function hitsIn(parts, terms) {
  const hits = [];
  const missing = new Set(terms);
  for (const { where, step, agent, text } of parts) {
    const folded = fold(text);
    for (const term of terms) {
      const found = hits.length < MOST_HITS || missing.has(term) ? term.exec(folded) : null;
      if (!found) continue;
      missing.delete(term);
      hits.push({ where, step, agent, ...context(text, found.index, found[0].length) });
    }
  }
  return missing.size ? null : hits;
}

function context(text, at, length) {
  const start = Math.max(0, at - AROUND);
  const end = Math.min(text.length, at + length + AROUND);
  return {
    before: (start > 0 ? "…" : "") + text.slice(start, at),
    match: text.slice(at, at + length),
    after: text.slice(at + length, end) + (end < text.length ? "…" : ""),
  };
}

/** Running runs first, then by the field; `-` reverses. What is unknown comes last either way. */
function sorted(rows, sort) {
  const reverse = sort.startsWith("-");
  const field = sort.replace(/^-/, "");
  const running = (row) => (row.outcome === "running" ? 0 : 1);
  if (field === "added") return sorted(reverse ? rows.toReversed() : rows, "");
  return rows.toSorted((one, other) => {
    const live = running(one) - running(other);
    if (live || !field) return live;
    const [left, right] = [one[field], other[field]];
    if (left == null || right == null) return (left == null) - (right == null);
    const order = left < right ? -1 : left > right ? 1 : 0;
    return reverse ? -order : order;
  });
}

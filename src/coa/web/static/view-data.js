// Everything that the viewer fetches. The addresses are those of coa/view, relative to the page, under a server as well
// as in a bundle of files. A bundle has no program behind it: what takes a query there is answered by bundle.js.
import { call, messages } from "./api.js";

export class ViewData {
  #kept = new Map(); // answers that do not change while the page is open: those of a bundle, tokens and raw texts
  #bundle = null;

  constructor() {
    this.current = null; // the newest answer of index()
  }

  get isBundle() {
    return this.current?.bundle === true;
  }

  /** Folders, facets, counts and how far indexing is. Asked again only with `fresh`. */
  async index({ fresh = false } = {}) {
    if (fresh || this.current === null) this.current = await call("GET", "api/index.json");
    return this.current;
  }

  /** `query`: the filters, as URLSearchParams or as an object. Answers with { total, rows, offset }. */
  async runs(query) {
    const asked = parameters(query);
    const index = await this.index();
    if (index.bundle) return (await this.#files()).runs(asked);
    return call("GET", `api/runs.json?${asked}`);
  }

  async compare(query) {
    const asked = parameters(query);
    const index = await this.index();
    if (index.bundle) return (await this.#files()).compare(asked);
    return call("GET", `api/compare.json?${asked}`);
  }

  run(id) {
    return this.#get(`api/runs/${part(id)}.json`);
  }

  tokens(id) {
    return this.#get(`api/runs/${part(id)}/tokens.json`);
  }

  raw(id) {
    return this.#get(`api/runs/${part(id)}/raw.json`);
  }

  folder(id) {
    return this.#get(`api/folders/${part(id)}.json`);
  }

  /** The groups of one step of RL. */
  folderStep(id, step) {
    return this.#get(`api/folders/${part(id)}/steps/${part(step)}.json`);
  }

  /** `query` may name a `scanner` and an `offset`. */
  async findings(query) {
    const asked = parameters(query);
    const index = await this.index();
    if (index.bundle) return (await this.#files()).findings(asked);
    return call("GET", `api/findings.json?${asked}`);
  }

  problems() {
    return this.#get("api/problems.json");
  }

  /** What changes, as { revision, progress }, until `signal` is aborted. A lost connection is made again. */
  async *changes(signal, onLost = () => {}) {
    for (let failures = 0; !signal.aborted; ) {
      try {
        for await (const change of messages("api/changes", signal)) {
          failures = 0;
          onLost(false);
          yield change;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 404) return;
        onLost(true);
      }
      const pause = PAUSES_MS[Math.min(failures++, PAUSES_MS.length - 1)];
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  async #files() {
    const { Bundle } = await import("./bundle.js");
    this.#bundle ??= new Bundle((path) => this.#get(path), this.current);
    return this.#bundle;
  }

  async #get(path) {
    if (!this.isBundle) return call("GET", path);
    if (!this.#kept.has(path)) {
      if (this.#kept.size > KEPT) this.#kept.delete(this.#kept.keys().next().value);
      this.#kept.set(path, call("GET", path));
      this.#kept.get(path).catch(() => this.#kept.delete(path));
    }
    return this.#kept.get(path);
  }
}

const KEPT = 200;
const PAUSES_MS = [500, 1000, 2000, 4000, 8000];

/** Without empty values, so that equal views have equal addresses. */
export function parameters(query) {
  const found = new URLSearchParams();
  const entries = query instanceof URLSearchParams ? query : Object.entries(query ?? {});
  for (const [name, value] of entries) if (value !== null && value !== undefined && value !== "") found.append(name, value);
  return found;
}

function part(text) {
  return encodeURIComponent(text);
}

// The list that a run was opened from, so that one can go back to it and on to the next run. It is kept with the tab.
import { parameters } from "./view-data.js";

const KEY = "coa-view-trail";

/** `trail` is { query, offset, total, ids, at }: the filters as text, the shown page, and the run that was opened. */
export function remember(trail) {
  sessionStorage.setItem(KEY, JSON.stringify(trail));
}

export function trail() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) ?? null;
  } catch {
    return null;
  }
}

const ORIGIN = "coa-view-origin";

/** Keeps the address of the view from which runs were opened. */
export function leave(hash) {
  sessionStorage.setItem(ORIGIN, hash);
}

/** Where a run was opened from: the list as it is now, or another view. */
export function origin() {
  const known = sessionStorage.getItem(ORIGIN) ?? "";
  return known.length > 2 && !known.startsWith("#/runs") ? known : listAddress();
}

export function listAddress() {
  const query = trail()?.query;
  return query ? `#/runs?${query}` : "#/runs";
}

/** The run before (-1) or after (1) this one in the list, or null. A page of the list that is not at hand is fetched. */
export async function neighbour(id, by, data) {
  const known = trail();
  const at = known?.ids.indexOf(id) ?? -1;
  if (at < 0) return null;
  const wanted = known.offset + at + by;
  if (wanted < 0 || wanted >= known.total) return null;
  if (known.ids[at + by]) return moved(known, known.ids[at + by]);
  const limit = known.limit;
  const query = parameters(new URLSearchParams(known.query));
  const offset = Math.max(0, by > 0 ? wanted : wanted - limit + 1);
  query.set("offset", offset);
  query.set("limit", limit);
  const { rows, total } = await data.runs(query);
  const found = rows[wanted - offset];
  if (!found) return null;
  return moved({ ...known, offset, total, ids: rows.map((row) => row.id) }, found.id);
}

/** The place of a run in the list, as [number from 1, total], or null. */
export function placeOf(id) {
  const known = trail();
  const at = known?.ids.indexOf(id) ?? -1;
  return at < 0 ? null : [known.offset + at + 1, known.total];
}

function moved(known, id) {
  const query = new URLSearchParams(known.query);
  if (known.offset) query.set("offset", known.offset);
  else query.delete("offset");
  remember({ ...known, query: String(query), at: id });
  return id;
}

// Calls of the page's own API. A server that wants a key gets the one that the tab was given; a closed tab forgets it.
import { askForKey } from "./dialogs.js";

const KEY = "coa-key";

export class ApiFailure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

async function send(path, options) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(key === null ? {} : { Authorization: `Bearer ${key}` }) };
    const answer = await fetch(path, { ...options, headers, cache: "no-store" });
    if (answer.status === 401) {
      sessionStorage.setItem(KEY, await askForKey(key !== null));
      continue;
    }
    if (answer.ok) return answer;
    const body = await answer.json().catch(() => null);
    throw new ApiFailure(answer.status, body?.error?.message ?? `the server answered with status ${answer.status}`);
  }
}

export async function call(method, path, body) {
  const options = { method };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  const answer = await send(path, options);
  return answer.status === 204 ? null : answer.json();
}

/** The `data` of each message of an event stream, as objects. */
export async function* messages(path, signal) {
  const answer = await send(path, { signal, headers: { Accept: "text/event-stream" } });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (waiting + value).split("\n\n");
      waiting = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
        if (data.length) yield JSON.parse(data.join("\n"));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const PAUSES_MS = [500, 1000, 2000, 4000, 8000];

/** The batches of a run from event `start` on, up to its end. A lost connection is made again where it broke off. */
export async function* follow(run, start, signal, onLost) {
  let next = start;
  let failures = 0;
  let over = false;
  while (!signal.aborted) {
    try {
      for await (const batch of messages(`/page/runs/${encodeURIComponent(run)}/events?start=${next}`, signal)) {
        failures = 0;
        onLost(false);
        next = batch.next;
        over = batch.events.some((event) => event.type === "ended");
        yield batch;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiFailure && error.status < 500 && error.status !== 429) throw error;
      onLost(!over);
    }
    if (over) return;
    await new Promise((resolve) => setTimeout(resolve, PAUSES_MS[Math.min(failures++, PAUSES_MS.length - 1)]));
  }
}

// What is asked of the server: JSON, and streams of events.

import { askKey, forgetKey, key } from "./key.js";

/** An answer that is an error: what, and where possible a hint. */
export class Refused extends Error {
  constructor(status, body) {
    const error = (body && body.error) || {};
    super(error.message || `the server answered ${status}`);
    this.status = status;
    this.hint = error.hint || "";
  }
}

/** Fetch with the key; asks for one, and again, while the server wants another. */
export async function ask(path, options = {}) {
  for (;;) {
    const used = key();
    const headers = { ...(options.headers || {}) };
    if (used) headers.Authorization = `Bearer ${used}`;
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, { error: { message: "the server cannot be reached" } });
    }
    if (answer.status === 401) {
      if (used) forgetKey(used);
      await askKey(Boolean(used));
      continue;
    }
    if (!answer.ok) throw new Refused(answer.status, await bodyOf(answer));
    return answer;
  }
}

export async function json(path) {
  return (await ask(path)).json();
}

async function bodyOf(answer) {
  try {
    return await answer.json();
  } catch {
    return null;
  }
}

/** Yields the events of a streamed request until its end. Throws Refused, also within it. */
export async function* stream(path, body, signal) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let ended = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") {
        ended = true;
        continue;
      }
      const event = JSON.parse(data);
      if (event.error) throw new Refused(200, event);
      yield event;
    }
  }
  if (!ended) throw new Refused(0, { error: { message: "the answer broke off" } });
}

// One answer, as it comes, and how quick it was.

import { button, h, seconds, short } from "./dom.js";
import { stream } from "./api.js";

/**
 * Calls `onText(text)` and `onThought(text)` with each piece. Gives what there is to say of it:
 * {tokens, prompt, ttft, seconds, reason, error}. Stopping is no error, and its reason "stopped".
 */
export async function generate(path, body, { signal, onText, onThought = () => {} }) {
  const begin = performance.now();
  const facts = { tokens: 0, prompt: 0, ttft: null, seconds: 0, reason: null, error: null };
  try {
    const asked = { ...body, stream: true, stream_options: { include_usage: true } };
    for await (const event of stream(path, asked, signal)) {
      if (event.usage) {
        facts.tokens = event.usage.completion_tokens;
        facts.prompt = event.usage.prompt_tokens;
      }
      const choice = event.choices?.[0];
      if (!choice) continue;
      const { text, delta } = choice;
      const thought = delta?.reasoning_content ?? delta?.reasoning;
      const said = text ?? delta?.content;
      if (thought) onThought(thought);
      if (said) onText(said);
      if (thought || said) facts.ttft ??= (performance.now() - begin) / 1000;
      if (said && !event.usage) facts.tokens += 1;
      facts.reason = choice.finish_reason ?? facts.reason;
    }
  } catch (error) {
    if (error.name === "AbortError") facts.reason = "stopped";
    else facts.error = error;
  }
  facts.seconds = (performance.now() - begin) / 1000;
  return facts;
}

const REASONS = { length: "at the length limit", stopped: "stopped by you", abort: "aborted" };

/** `64 tokens · 120 tokens/s · first after 30 ms`. */
export function told(facts) {
  const parts = [`${short(facts.tokens)} token${facts.tokens === 1 ? "" : "s"}`];
  const decoding = facts.seconds - (facts.ttft ?? 0);
  // What came all at once was not seen to take time.
  if (facts.tokens > 1 && decoding > 0.05) {
    parts.push(`${short((facts.tokens - 1) / decoding)} tokens/s`);
  }
  if (facts.ttft != null) parts.push(`first after ${seconds(facts.ttft)}`);
  if (facts.prompt) parts.push(`prompt of ${short(facts.prompt)}`);
  if (REASONS[facts.reason]) parts.push(REASONS[facts.reason]);
  return parts.join(" · ");
}

/** What went wrong, and what to do about it. */
export function failure(error, retry) {
  return h(
    "div",
    { class: "failed", role: "alert" },
    h("strong", {}, error.message),
    error.hint && h("span", { class: "hint" }, error.hint),
    retry && h("div", {}, button("plain", "Try again", retry)),
  );
}

/** A request as a command line. */
export function curl(path, body) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${location.origin}${path} -H 'Content-Type: application/json' -d '${quoted}'`;
}

/** A button that copies what `text()` gives, and says so. `aside`: a class for narrow pages. */
export function copier(words, text, aside = "") {
  const copy = button(`plain ${aside}`, words, async () => {
    await navigator.clipboard.writeText(text());
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = words), 1200);
  });
  return copy;
}

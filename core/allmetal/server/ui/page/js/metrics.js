// The server's own numbers, once a second, from /metrics.

const EVERY_MS = 1000;
const KEPT = 180;
const listeners = [];
/** The last minutes, oldest first: {at, tokens, prompt, running, waiting, kv, ttft, itl, hits}. */
export const history = [];
let before = null;

/** Call `listener(sample or null)` after each look; null: nobody answered. */
export function onSample(listener) {
  listeners.push(listener);
}

export function startMetrics() {
  const look = async () => {
    if (!document.hidden) {
      const sample = await read();
      if (sample) history.push(sample);
      if (history.length > KEPT) history.shift();
      listeners.forEach((listener) => listener(sample));
    }
    setTimeout(look, EVERY_MS);
  };
  look();
}

async function read() {
  try {
    const answer = await fetch("/metrics", { signal: AbortSignal.timeout(5000) });
    return answer.ok ? sampleOf(parse(await answer.text()), performance.now() / 1000) : null;
  } catch {
    return null;
  }
}

/** Sums of samples by name, whatever their labels; histograms' buckets left out. */
export function parse(text) {
  const sums = {};
  for (const line of text.split("\n")) {
    const found = /^allmetal:(\w+)(?:\{.*\})? (\S+)/.exec(line);
    if (!found || found[1].endsWith("_bucket")) continue;
    sums[found[1]] = (sums[found[1]] || 0) + Number(found[2]);
  }
  return sums;
}

function sampleOf(now, at) {
  const was = before;
  before = { now, at };
  const restarted = was && now.generation_tokens_total < was.now.generation_tokens_total;
  const since = (name) => (was && !restarted ? (now[name] || 0) - (was.now[name] || 0) : 0);
  const rate = (name) => (was ? since(name) / Math.max(0.1, at - was.at) : 0);
  const mean = (name) => since(`${name}_sum`) / since(`${name}_count`);
  return {
    at,
    tokens: rate("generation_tokens_total"),
    prompt: rate("prompt_tokens_total"),
    running: now.num_requests_running || 0,
    waiting: now.num_requests_waiting || 0,
    kv: 100 * (now.kv_cache_usage_perc || 0),
    ttft: 1000 * mean("time_to_first_token_seconds"),
    itl: 1000 * mean("inter_token_latency_seconds"),
    hits: (100 * (now.prefix_cache_hits_total || 0)) / (now.prefix_cache_queries_total || 1),
    totals: now,
  };
}

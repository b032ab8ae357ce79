// The view of the engine: what is served, and how it fares.

import { bytes, h, heading, short } from "./dom.js";
import { onSample } from "./metrics.js";
import { plot } from "./plot.js";

export function engineView(info) {
  const totals = h("dl", { class: "facts-grid card" });
  const element = h(
    "div",
    { class: "wide" },
    heading("Engine", `${info.model_type} on ${info.platform}: ${info.device}`),
    h("dl", { class: "facts-grid card" }, facts(modelFacts(info))),
    h("div", { class: "big" }, PLOTS.map((each) => h("div", { class: "card" }, plot(each)))),
    h("h2", {}, "Since the start"),
    totals,
  );
  onSample((sample) => {
    if (sample && element.isConnected) totals.replaceChildren(...facts(totalFacts(sample, info)));
  });
  return element;
}

const QUEUE = [
  ["running", "running"],
  ["waiting", "waiting"],
];
const PLOTS = [
  { title: "Generated", unit: "tokens/s", lines: [["tokens", "generated"]] },
  { title: "Prompts read", unit: "tokens/s", lines: [["prompt", "read"]] },
  { title: "KV cache", unit: "% in use", lines: [["kv", "in use"]], hue: 1, most: 100 },
  { title: "Requests", unit: "running", lines: QUEUE, hue: 2 },
  { title: "Time to first token", unit: "ms, mean", lines: [["ttft", "ttft"]], hue: 1, dots: true },
  { title: "Between tokens", unit: "ms, mean", lines: [["itl", "itl"]], hue: 2 },
];

const TASKS = { generate: "continue texts", embed: "make vectors", classify: "score labels" };

function modelFacts(info) {
  const { blocks, block_size } = info.cache;
  return {
    Model: info.model,
    Weights: bytes(info.parameter_bytes),
    Shape: `${info.num_layers} layers of ${short(info.hidden_size)}`,
    Vocabulary: short(info.vocab_size),
    Computes: info.quantization ? `${info.dtype}, weights ${info.quantization}` : info.dtype,
    "Longest sequence": `${short(info.max_model_len)} tokens`,
    "At once": `${short(info.max_num_seqs)} sequences`,
    "KV cache": `${short(blocks * block_size)} tokens, ${info.kv_dtype}`,
    Task: TASKS[info.task] || info.task,
    "Chat template": info.chat ? "yes" : "no",
    Version: info.version,
  };
}

function totalFacts({ totals, hits }, info) {
  const up = Math.max(0, Date.now() / 1000 - info.created);
  const [hours, minutes] = [Math.floor(up / 3600), Math.floor((up % 3600) / 60)];
  return {
    Up: hours ? `${hours} h ${minutes} min` : `${minutes} min`,
    "Requests ended": short(totals.request_success_total || 0),
    "Tokens read": short(totals.prompt_tokens_total || 0),
    "Tokens generated": short(totals.generation_tokens_total || 0),
    "Found in the prefix cache": `${short(hits)} % of prompts`,
    "Put back to make room": short(totals.num_preemptions_total || 0),
  };
}

function facts(values) {
  const fact = ([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return Object.entries(values).map(fact);
}

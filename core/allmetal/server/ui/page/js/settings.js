// How to sample: a form, kept between visits.

import { h } from "./dom.js";
import { load, save } from "./store.js";

const SLIDERS = [
  ["temperature", "Temperature", 0, 2, 0.05, 1, "0 takes the most likely token each time"],
  ["top_p", "Top p", 0.05, 1, 0.05, 1, "sample from tokens that together have this probability"],
  ["top_k", "Top k", 0, 200, 1, 0, "sample from this many tokens; 0: from all"],
  ["min_p", "Min p", 0, 0.5, 0.01, 0, "drop tokens less likely than this share of the most likely"],
  ["repetition_penalty", "Repetition penalty", 1, 2, 0.05, 1, "1 is none"],
];

export class Settings {
  /** `defaults`: what the model's makers recommend, which the server uses where nothing is said. */
  constructor(info) {
    this.defaults = info.sampling_defaults;
    this.longest = info.max_model_len;
    this.values = load().settings || {};
  }

  /** The fields of a request; only what was set, so that the server's defaults stay its own. */
  request() {
    const { max_tokens, seed, stop, system, ...rest } = this.values;
    const body = { ...rest };
    if (max_tokens) body.max_tokens = max_tokens;
    if (Number.isInteger(seed)) body.seed = seed;
    if (stop) body.stop = stop.split("\n").filter(Boolean).slice(0, 4);
    return body;
  }

  get system() {
    return (this.values.system || "").trim();
  }

  set(name, value) {
    if (value === "" || value == null || Number.isNaN(value)) delete this.values[name];
    else this.values[name] = value;
    save({ settings: this.values });
  }

  form(chat) {
    const form = h("div", { class: "settings" });
    const fill = () =>
      form.replaceChildren(
        ...(chat ? [this.area("system", "System prompt", "You are a helpful assistant.")] : []),
        ...SLIDERS.map((slider) => this.slider(...slider)),
        h(
          "div",
          { class: "pair" },
          this.number("max_tokens", "Most tokens", chat ? "no limit" : "256"),
          this.number("seed", "Seed", "random"),
        ),
        this.area("stop", "Stop at (one a line)", ""),
      );
    this.reset = () => {
      this.values = {};
      save({ settings: {} });
      fill();
    };
    fill();
    return form;
  }

  slider(name, title, min, max, step, otherwise, doc) {
    const start = this.defaults[name] ?? otherwise;
    const shown = h("span", { class: "value" }, String(this.values[name] ?? start));
    const oninput = (event) => {
      shown.textContent = String(Number(event.target.value));
      this.set(name, Number(event.target.value));
    };
    const value = String(this.values[name] ?? start);
    const props = { type: "range", min, max, step, oninput, title: doc, "aria-label": title };
    const range = h("input", props);
    range.value = value;
    return h("label", { class: "row" }, h("span", {}, title, shown), range);
  }

  number(name, title, placeholder) {
    const onchange = (event) => this.set(name, event.target.valueAsNumber);
    const range = name === "max_tokens" ? { min: 1, max: this.longest } : { min: 0 };
    const input = h("input", { type: "number", step: 1, ...range, placeholder, onchange });
    input.value = this.values[name] ?? "";
    return h("label", { class: "row" }, h("span", {}, title), input);
  }

  area(name, title, placeholder) {
    const onchange = (event) => this.set(name, event.target.value);
    const input = h("textarea", { rows: 2, placeholder, onchange, value: this.values[name] ?? "" });
    return h("label", { class: "row" }, h("span", {}, title), input);
  }
}

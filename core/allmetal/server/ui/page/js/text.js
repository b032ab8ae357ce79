// A text that the model continues, for models that were not taught to talk.

import { button, h } from "./dom.js";
import { copier, curl, failure, generate, told } from "./generate.js";

const PATH = "/v1/completions";
const MOST_TOKENS = 256;
const START = "The three most important things to know about metals are";

export class Text {
  #running = null;
  #before = null;
  #pending = "";
  #drawing = 0;
  /** Where text begins that the model wrote; null while there is none. */
  #from = null;
  #behind = h("div", { class: "behind", "aria-hidden": "true" });
  #input = h("textarea", {
    "aria-label": "Text to continue",
    placeholder: "Write the beginning of a text, and let the model go on.",
    spellcheck: "false",
    oninput: () => this.#mark((this.#from = null)),
    onscroll: () => (this.#behind.scrollTop = this.#input.scrollTop),
    onkeydown: (event) => this.#key(event),
  });
  #go = button("primary", "Continue", () => this.#continue());
  #stop = button("stop", "Stop", () => this.#running?.abort(), { hidden: true });
  #undo = button("plain", "Undo", () => this.#restore(), { disabled: true });
  #facts = h("span", { class: "facts", role: "status" }, "Ctrl+Enter continues, Escape stops");
  #error = h("div");

  constructor(info, settings, tools) {
    this.info = info;
    this.settings = settings;
    this.#input.value = START;
    const copy = copier("Copy as curl", () => curl(PATH, this.#body()), "aside");
    const buttons = [copy, this.#undo, ...tools, this.#stop, this.#go];
    const grow = h("span", { class: "grow" });
    const below = h("div", { class: "below" }, this.#facts, grow, buttons);
    this.element = h(
      "div",
      { class: "talk" },
      h("div", { class: "paper" }, h("div", { class: "sheet card" }, this.#behind, this.#input)),
      h("div", { class: "compose" }, h("div", {}, this.#error, below)),
    );
  }

  focus() {
    this.#input.focus();
  }

  #body() {
    const { model } = this.info;
    const prompt = this.#input.value;
    return { model, prompt, max_tokens: MOST_TOKENS, ...this.settings.request() };
  }

  async #continue() {
    if (this.#running || !this.#input.value) return;
    this.#running = new AbortController();
    this.#before = this.#input.value;
    this.#from = this.#before.length;
    this.#busy(true);
    this.#error.replaceChildren();
    const facts = await generate(PATH, this.#body(), {
      signal: this.#running.signal,
      onText: (text) => this.#add(text),
    });
    this.#running = null;
    this.#draw();
    this.#busy(false);
    this.#facts.textContent = facts.error ? "" : told(facts);
    if (facts.error) this.#error.append(failure(facts.error, () => this.#continue()));
  }

  /** Drawn once a frame, however many pieces come. */
  #add(text) {
    this.#pending += text;
    this.#drawing ||= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    cancelAnimationFrame(this.#drawing);
    this.#drawing = 0;
    const box = this.#input;
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
    box.value += this.#pending;
    this.#pending = "";
    this.#mark();
    if (atEnd) box.scrollTop = box.scrollHeight;
    this.#behind.scrollTop = box.scrollTop;
  }

  /** Colour what the model wrote: a text like the one in front, seen through it. */
  #mark() {
    const { value } = this.#input;
    const from = this.#from ?? value.length;
    this.#behind.replaceChildren(value.slice(0, from), h("mark", {}, value.slice(from)));
  }

  #busy(busy) {
    this.#go.hidden = busy;
    this.#stop.hidden = !busy;
    this.#input.readOnly = busy;
    this.#undo.disabled = busy || this.#before == null;
  }

  #restore() {
    this.#input.value = this.#before;
    this.#from = this.#before = null;
    this.#mark();
    this.#busy(false);
  }

  #key(event) {
    if (event.key === "Escape") this.#running?.abort();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#continue();
  }
}

// A conversation with the model.

import { Compose } from "./compose.js";
import { button, h } from "./dom.js";
import { copier, curl, generate } from "./generate.js";
import { Answer, userTurn } from "./turn.js";

const PATH = "/v1/chat/completions";
const STARTS = [
  "What is a KV cache, in three sentences?",
  "Write a haiku about metal.",
  "Show me quicksort in Python.",
];

export class Chat {
  messages = [];
  #running = null;
  #last = null;
  #log = h("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });

  constructor(info, settings, tools) {
    this.info = info;
    this.settings = settings;
    this.compose = new Compose({
      onSend: (text) => this.#ask(text),
      onStop: () => this.#running?.abort(),
      below: [
        button("plain", "New chat", () => this.clear()),
        copier("Copy as curl", () => curl(PATH, this.#body()), "aside"),
        h("span", { class: "grow" }),
        ...tools,
      ],
    });
    this.element = h("div", { class: "talk" }, this.#log, this.compose.element);
    this.clear();
  }

  clear() {
    this.#running?.abort();
    this.messages = [];
    this.#last = null;
    const { model, device } = this.info;
    const about = `This is ${model} on ${device}. Nothing that is said leaves this server.`;
    const chip = (text) => button("chip", text, () => this.compose.submit(text));
    const hello = h(
      "div",
      { class: "hello" },
      h("h1", {}, "What shall we talk about?"),
      h("p", {}, about),
      h("div", { class: "starts" }, STARTS.map(chip)),
    );
    this.#log.replaceChildren(hello);
    this.compose.focus();
  }

  #body() {
    const system = this.settings.system ? [{ role: "system", content: this.settings.system }] : [];
    const messages = [...system, ...this.messages];
    return { model: this.info.model, messages, ...this.settings.request() };
  }

  #ask(text) {
    if (!this.messages.length) this.#log.replaceChildren();
    // What got no answer is not asked again with it.
    if (this.messages.at(-1)?.role === "user") this.messages.pop();
    this.messages.push({ role: "user", content: text });
    this.#log.append(userTurn(text));
    this.#answer();
  }

  /** Answer what was said last. */
  async #answer() {
    this.#last?.settle();
    const answer = (this.#last = new Answer(() => this.#follow()));
    this.#log.append(answer.element);
    this.#log.setAttribute("aria-busy", "true");
    this.compose.busy = true;
    this.#follow(true);
    const running = (this.#running = new AbortController());
    const facts = await generate(PATH, this.#body(), {
      signal: running.signal,
      onText: (text) => answer.add(text),
      onThought: (text) => answer.think(text),
    });
    if (this.#running !== running) return;
    this.#running = null;
    this.compose.busy = false;
    this.#log.setAttribute("aria-busy", "false");
    if (this.#last !== answer) return; // cleared meanwhile
    if (answer.text) this.messages.push({ role: "assistant", content: answer.text });
    answer.end(facts, () => this.#again(answer));
  }

  #again(answer) {
    if (answer.text) this.messages.pop();
    answer.element.remove();
    this.#answer();
  }

  /** Keep the end in sight for who is at the end. */
  #follow(always = false) {
    const { scrollHeight, scrollTop, clientHeight } = this.#log;
    if (always || scrollHeight - scrollTop - clientHeight < 120) this.#log.scrollTop = scrollHeight;
  }
}

// One turn of a conversation on the page.

import { button, h } from "./dom.js";
import { copier, failure, told } from "./generate.js";
import { markdown } from "./markdown.js";

/** What the user said, as it was typed. */
export function userTurn(text) {
  const said = h("div", { class: "said" }, text);
  return h("article", { class: "turn user", "aria-label": "You" }, said);
}

/** An answer that grows. Drawn once a frame, however many pieces come. */
export class Answer {
  text = "";
  thought = "";
  #said = h("div", { class: "said waiting" });
  #thoughtText = h("div");
  #thought = h(
    "details",
    { class: "thought", open: true, hidden: true },
    h("summary", {}, "Thinking"),
    this.#thoughtText,
  );
  #under = h("div", { class: "under" });
  #drawing = 0;
  element = h(
    "article",
    { class: "turn answer", "aria-label": "The model" },
    this.#thought,
    this.#said,
    this.#under,
  );

  /** `onDraw` is called after each drawing. */
  constructor(onDraw) {
    this.onDraw = onDraw;
  }

  add(text) {
    this.text += text;
    this.#later();
  }

  think(text) {
    this.thought += text;
    this.#later();
  }

  #later() {
    this.#drawing ||= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#drawing = 0;
    this.#thought.hidden = !this.thought;
    this.#thoughtText.textContent = this.thought;
    if (this.text) this.#thought.open = false;
    this.#said.replaceChildren(...markdown(this.text));
    this.onDraw();
  }

  /** Show how it went; `again` asks once more. */
  end(facts, again) {
    cancelAnimationFrame(this.#drawing);
    this.#draw();
    this.#said.classList.remove("waiting");
    if (facts.error) this.#said.append(failure(facts.error, again));
    else if (!this.text) this.#said.append(h("p", { class: "soft" }, "(nothing)"));
    this.#under.replaceChildren(
      ...(facts.error ? [] : [h("span", { class: "facts" }, told(facts))]),
      ...(this.text ? [copier("Copy", () => this.text)] : []),
      ...(again && !facts.error ? [button("plain", "Again", again)] : []),
    );
    this.onDraw();
  }

  /** No longer the last: it can be copied, not asked again. */
  settle() {
    this.#under.querySelectorAll("button:not(:first-of-type)").forEach((button) => button.remove());
  }
}

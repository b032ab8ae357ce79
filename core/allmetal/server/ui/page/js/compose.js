// The box to write in: Enter sends, Shift+Enter breaks the line, Escape stops.

import { button, h } from "./dom.js";

export class Compose {
  #send = button("primary", "Send", () => this.submit());
  #stop = button("stop", "Stop", () => this.onStop(), { hidden: true });
  #input = h("textarea", {
    rows: 1,
    placeholder: "Say something",
    "aria-label": "Message",
    oninput: () => this.#fit(),
    onkeydown: (event) => this.#key(event),
  });

  constructor({ onSend, onStop, below }) {
    this.onSend = onSend;
    this.onStop = onStop;
    const box = h("div", { class: "box" }, this.#input, this.#stop, this.#send);
    const under = h("div", { class: "below" }, below);
    this.element = h("div", { class: "compose" }, h("div", {}, box, under));
    this.#fit();
  }

  set busy(busy) {
    this.#send.hidden = busy;
    this.#stop.hidden = !busy;
  }

  focus() {
    this.#input.focus();
  }

  submit(text = this.#input.value) {
    if (!text.trim() || this.#send.hidden) return;
    this.#input.value = "";
    this.#fit();
    this.onSend(text);
  }

  #fit() {
    this.#send.disabled = !this.#input.value.trim();
    if (!this.#input.isConnected) return; // it has no height yet
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
  }

  #key(event) {
    if (event.key === "Escape") this.onStop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.submit();
  }
}

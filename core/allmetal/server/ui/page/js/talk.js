// The view to talk in: the conversation or the text, and the engine and settings beside it.

import { Chat } from "./chat.js";
import { button, h } from "./dom.js";
import { plot } from "./plot.js";
import { Settings } from "./settings.js";
import { Text } from "./text.js";

export function talkView(info) {
  const settings = new Settings(info);
  const element = h("div", { class: "chat" });
  let chat = info.chat;
  const parts = {};

  function show() {
    const toggle = button("plain side-toggle", "Settings", () => panel.classList.add("open"));
    const other = button("plain", chat ? "Continue a text" : "Chat", () => {
      chat = !chat;
      show();
    });
    // A model without a chat template can only go on with a text.
    const tools = [...(info.chat ? [other] : []), toggle];
    const talk = (parts[chat] ??= new (chat ? Chat : Text)(info, settings, tools));
    const panel = (parts[`side ${chat}`] ??= side(info, settings, chat));
    element.replaceChildren(talk.element, panel);
  }
  show();
  return element;
}

function side(info, settings, chat) {
  const close = () => panel.classList.remove("open");
  const form = settings.form(chat);
  const reset = button("plain", "Reset", () => settings.reset());
  const done = button("plain side-toggle", "Done", close);
  const onkeydown = (event) => event.key === "Escape" && close();
  const panel = h(
    "aside",
    { class: "side", "aria-label": "Engine and settings", onkeydown },
    h(
      "section",
      {},
      h("h2", {}, "Engine", done),
      h(
        "div",
        { class: "plots" },
        plot({ title: "Generated", unit: "tokens/s", lines: [["tokens", "generated"]] }),
        plot({ title: "KV cache", unit: "% in use", lines: [["kv", "in use"]], hue: 1, most: 100 }),
        plot({
          title: "Requests",
          unit: "running",
          lines: [["running", "running"], ["waiting", "waiting"]],
          hue: 2,
        }),
      ),
    ),
    h("section", {}, h("h2", {}, "Sampling", reset), form),
  );
  return panel;
}

// Puts the views together.

import { json } from "./api.js";
import { h, short } from "./dom.js";
import { engineView } from "./engine.js";
import { failure } from "./generate.js";
import { onSample, startMetrics } from "./metrics.js";
import { platformView } from "./platform.js";
import { talkView } from "./talk.js";
import { startTheme } from "./theme.js";

const view = document.getElementById("view");
const VIEWS = { chat: talkView, engine: engineView, platform: platformView };
const made = {};

function route(info) {
  const talks = info.task === "generate"; // others make vectors or labels, and have nothing to say
  const asked = location.hash.slice(1);
  const known = asked in VIEWS && (asked !== "chat" || talks);
  const name = known ? asked : talks ? "chat" : "engine";
  view.replaceChildren((made[name] ??= VIEWS[name](info)));
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (link.hash === "#chat") link.hidden = !talks;
  }
}

function showState(sample) {
  const state = document.getElementById("state");
  const open = sample ? sample.running + sample.waiting : 0;
  const words = !sample ? "not reachable" : open ? `${short(sample.tokens)} tokens/s` : "ready";
  state.className = `state ${!sample ? "bad" : open ? "busy" : "good"}`;
  if (state.textContent !== words) state.textContent = words;
}

async function start() {
  view.replaceChildren(h("p", { class: "notice" }, "Asking the server …"));
  try {
    const info = await json("/v1/info");
    document.getElementById("model").textContent = info.model;
    document.getElementById("model").title = info.model;
    document.title = `${info.model.split("/").at(-1)} · allmetal`;
    addEventListener("hashchange", () => route(info));
    route(info);
  } catch (error) {
    view.replaceChildren(h("div", { class: "wide" }, failure(error, start)));
  }
}

startTheme(document.getElementById("theme"));
onSample(showState);
startMetrics();
start();

// The view of the machine: what was asked of it, what it got, and what other platforms can do.

import { json } from "./api.js";
import { bytes, h, heading } from "./dom.js";
import { failure } from "./generate.js";

export function platformView() {
  const waiting = h("p", { class: "notice" }, "Asking the platforms …");
  const element = h("div", { class: "wide" }, waiting);
  const load = async () => {
    try {
      const [plan, matrix] = await Promise.all([json("/v1/platform"), json("/v1/matrix")]);
      element.replaceChildren(...planSection(plan), ...matrixSection(matrix, plan.platform));
    } catch (error) {
      element.replaceChildren(failure(error, load));
    }
  };
  load();
  return element;
}

function planSection({ platform, device, decisions }) {
  const memory = device.total_memory ? `, ${bytes(device.total_memory)}` : "";
  const row = ({ feature, asked, got, by, reason, fallback }) =>
    h(
      "tr",
      { class: fallback ? "fell" : "" },
      h("th", { scope: "row" }, h("code", {}, feature)),
      [asked, got, by].map((text) => h("td", {}, text)),
      h("td", { class: "why" }, reason),
    );
  const heads = ["setting", "asked", "got", "by", "why"];
  return [
    heading("Plan", `${platform}: ${device.name}${memory}`),
    h(
      "div",
      { class: "card frame", tabindex: "0", role: "region", "aria-label": "The plan" },
      h(
        "table",
        { class: "table plan" },
        h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
        h("tbody", {}, decisions.map(row)),
      ),
    ),
  ];
}

const MARKS = {
  tested: "✓", emulated: "◐", "schema-checked": "◔", compiled: "◌",
  failing: "✗", declared: "○", untested: "·",
};

function matrixSection({ features, platforms }, here) {
  const names = Object.keys(platforms);
  const entries = Object.entries(features);
  const rows = entries.map(([name, doc]) => featureRow(name, doc, platforms, here));
  const find = h("input", {
    class: "find",
    type: "search",
    placeholder: "Find a feature",
    "aria-label": "Find a feature",
    oninput: ({ target }) => {
      const words = target.value.toLowerCase().split(/\s+/);
      const fits = (row) => words.every((word) => row.dataset.words.includes(word));
      rows.forEach((row) => (row.hidden = !fits(row)));
    },
  });
  const head = (name) => h("th", { scope: "col", class: name === here ? "here" : "" }, name);
  const heads = h("tr", {}, h("th", { scope: "col" }, "feature"), names.map(head));
  const about = "✓ tested, ◐ ◔ ◌ without the device, ○ declared, ✗ failing; press a feature for the reasons";
  return [
    heading("What runs where", about, find),
    h(
      "div",
      { class: "card frame", tabindex: "0", role: "region", "aria-label": "Features of platforms" },
      h("table", { class: "table matrix" }, h("thead", {}, heads), h("tbody", {}, rows)),
    ),
  ];
}

/** A feature's words for all platforms; its reasons are a row that comes below it. */
function featureRow(name, doc, platforms, here) {
  let reasons = null;
  const toggle = ({ currentTarget }) => {
    currentTarget.setAttribute("aria-expanded", String(!reasons));
    if (reasons) reasons = reasons.remove();
    else row.after((reasons = reasonRow(name, platforms)));
  };
  const button = h(
    "button",
    { type: "button", "aria-expanded": "false", onclick: toggle },
    h("code", {}, name),
    h("small", {}, doc),
  );
  const cells = Object.entries(platforms).map(([platform, { features }]) =>
    h("td", { class: platform === here ? "here" : "" }, word(features[name])),
  );
  const words = `${name} ${doc}`.toLowerCase();
  const row = h("tr", { "data-words": words }, h("th", { scope: "row" }, button), cells);
  return row;
}

function word(cell) {
  if (!cell) return h("span", { class: "word" }, "–");
  const mark = MARKS[cell.evidence] ? ` ${MARKS[cell.evidence]}` : "";
  const kind = cell.evidence === "failing" ? "failing" : cell.is;
  return h("span", { class: `word ${kind}`, title: cell.why }, `${cell.is}${mark}`);
}

function reasonRow(name, platforms) {
  const lines = Object.entries(platforms).map(([platform, { features, note }]) => {
    const cell = features[name];
    const proof = cell?.proof?.length ? ` (${cell.proof.join("; ")})` : "";
    const why = cell ? cell.why + proof : note || "not installed";
    return h("li", {}, h("strong", {}, platform), `: ${why}`);
  });
  const cell = h("td", { colspan: lines.length + 1 }, h("ul", {}, lines));
  return h("tr", { class: "reasons" }, cell);
}

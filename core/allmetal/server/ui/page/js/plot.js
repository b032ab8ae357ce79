// A line over the last minutes, drawn as SVG.

import { h, s, short } from "./dom.js";
import { history, onSample } from "./metrics.js";

const SPAN = 120;
const WIDTH = 300;
const HEIGHT = 60;

/**
 * `lines`: [name of a sample's field, what to call it]; the first is filled, and its number shown.
 * `most`: the top of the scale where it is known.
 */
export function plot({ title, unit, lines, hue = 0, most = 0, dots = false }) {
  const now = h("span", { class: "now" }, "–");
  const scale = h("span", { class: "scale", "aria-hidden": "true" });
  const area = s("path", { class: "area" });
  const kind = (i) => ["line", i && "second", dots && "dots"].filter(Boolean).join(" ");
  const paths = lines.map((_, i) => s("path", { class: kind(i) }));
  const box = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" };
  const floor = s("path", { class: "grid", d: `M0 ${HEIGHT}H${WIDTH}` });
  const drawn = [floor, area, ...paths.toReversed()];
  const svg = s("svg", { ...box, role: "img", "aria-label": title }, drawn);
  const element = h(
    "div",
    { class: `plot hue-${hue}` },
    h("div", { class: "head" }, title, now, h("span", { class: "unit" }, unit)),
    h("div", { class: "draw" }, svg, scale),
    lines.length > 1 && legend(lines),
  );

  function draw() {
    const last = history.at(-1);
    if (!last) return;
    const points = history.filter((sample) => sample.at > last.at - SPAN);
    const values = lines.flatMap(([name]) => points.map((sample) => sample[name]));
    const top = most || nice(Math.max(0, ...values.filter(Number.isFinite)));
    const draw = dots ? marks : line;
    lines.forEach(([name], i) => paths[i].setAttribute("d", draw(points, name, last.at, top)));
    if (!dots) area.setAttribute("d", closed(points, lines[0][0], last.at, top));
    const value = lastKnown(points, lines[0][0]);
    now.textContent = short(value);
    scale.textContent = most ? "" : short(top);
    svg.setAttribute("aria-label", `${title}: ${short(value)} ${unit} now, scale to ${short(top)}`);
  }
  onSample(() => element.isConnected && draw());
  draw();
  return element;
}

function legend(lines) {
  const key = ([, words], i) => h("span", {}, h("i", { class: i ? "second" : "" }), words);
  return h("div", { class: "key" }, lines.map(key));
}

const x = (sample, end) => (WIDTH * (sample.at - end + SPAN)) / SPAN;
const y = (value, top) => HEIGHT - 2 - ((HEIGHT - 6) * Math.min(value, top)) / top;

/** Where the known values lie. */
function places(points, name, end, top) {
  const known = points.filter((sample) => Number.isFinite(sample[name]));
  return known.map((p) => `${x(p, end).toFixed(1)} ${y(p[name], top).toFixed(1)}`);
}

function line(points, name, end, top) {
  const steps = places(points, name, end, top);
  return steps.length ? `M${steps.join("L")}h.01` : ""; // also one alone is seen
}

/** For what is not measured all the time: nothing is known between. */
function marks(points, name, end, top) {
  return places(points, name, end, top).map((place) => `M${place}h.01`).join("");
}

function closed(points, name, end, top) {
  const path = line(points, name, end, top);
  const known = points.filter((sample) => Number.isFinite(sample[name]));
  if (!path) return "";
  return `${path}L${x(known.at(-1), end)} ${HEIGHT}L${x(known[0], end)} ${HEIGHT}Z`;
}

function lastKnown(points, name) {
  return points.map((sample) => sample[name]).findLast(Number.isFinite);
}

/** The next of 1, 2, 5, 10, 20 .. above. */
export function nice(value) {
  if (value <= 1) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * ten).find((top) => top >= value);
}

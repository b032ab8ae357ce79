// Elements without strings of HTML: what is text stays text.

/** `h("button", {class: "plain", onclick: f}, "Stop", child)`; falsy children are left out. */
export function h(name, props = {}, ...children) {
  return fill(document.createElement(name), props, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for SVG. */
export function s(name, props = {}, ...children) {
  return fill(document.createElementNS(SVG, name), props, children);
}

function fill(element, props, children) {
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") element[key] = value;
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child || child === 0));
  return element;
}

/** A button of a kind that the style sheets know: plain, primary, stop, chip. */
export function button(kind, words, onclick, props = {}) {
  return h("button", { class: kind, type: "button", onclick, ...props }, words);
}

/** The top of a view: its name, and what there is to say of it. */
export function heading(words, about, ...more) {
  const soft = h("span", { class: "soft" }, about);
  return h("div", { class: "title" }, h("h1", {}, words), soft, ...more);
}

/** Numbers for people: 1,234 or 0.57 or 12.3k. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at++) value /= 1024;
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

export function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

// What is kept between visits: settings and the colours, never what was said.

const NAME = "allmetal";

export function load() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) || {};
  } catch {
    return {};
  }
}

export function save(changes) {
  try {
    localStorage.setItem(NAME, JSON.stringify({ ...load(), ...changes }));
  } catch {
    // Without storage the page forgets, and works.
  }
}

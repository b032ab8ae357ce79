// Light or dark: as the system has it, until somebody chooses.

import { load, save } from "./store.js";

const system = matchMedia("(prefers-color-scheme: dark)");

export function startTheme(button) {
  const apply = () => {
    const theme = load().theme || (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    const other = theme === "dark" ? "light" : "dark";
    button.textContent = theme === "dark" ? "☀" : "☾";
    button.setAttribute("aria-label", `Use ${other} colours`);
    button.title = `Use ${other} colours`;
    button.onclick = () => {
      save({ theme: other });
      apply();
    };
  };
  system.addEventListener("change", apply);
  apply();
}

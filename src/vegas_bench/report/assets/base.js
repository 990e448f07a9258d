"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  // A page opened as a file may have no storage; then the choice lasts as long as the page.
  const stored = { get: () => { try { return localStorage.getItem("vegas-theme"); } catch { return null; } },
    set: value => { try { localStorage.setItem("vegas-theme", value); } catch { /* see above */ } } };
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  const label = () => { button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`); };
  const choice = stored.get();
  if (choice === "light" || choice === "dark") root.dataset.theme = choice;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored.set(root.dataset.theme);
    label();
    dispatchEvent(new Event("themechange"));
  });
  system.addEventListener("change", () => { label(); dispatchEvent(new Event("themechange")); });
  label();
})();

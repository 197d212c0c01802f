"use strict";
/* Puts the page together, and again when another group of runs is chosen. */
(() => {
  const root = document.documentElement;
  const darkSystem = window.matchMedia("(prefers-color-scheme: dark)");
  let theme = darkSystem.matches ? "dark" : "light";

  function setTheme(name) {
    theme = name;
    root.dataset.theme = name;
    byId("theme").textContent = name === "dark" ? "Light" : "Dark";
    if (page.redrawCurves) page.redrawCurves();
    if (page.redrawAces) page.redrawAces();
  }

  function meanings() {
    for (const card of document.querySelectorAll("[data-guarantee]")) {
      const kind = card.dataset.guarantee;
      const users = page.group.runs.filter((run) => (kind === "unknown" ? run.unknown : run.guarantees.includes(kind)));
      card.querySelector(".used").textContent = users.length ? `Here: ${users.map((run) => run.name).join(", ")}.` : "No run here.";
      card.classList.toggle("unused", !users.length);
      if (kind === "unknown") card.hidden = !users.length;
    }
  }

  function configurations() {
    byId("configurations").replaceChildren(...page.group.runs.map((run, place) =>
      make("details", {}, make("summary", {}, dot(place), run.name),
        make("dl", { className: "settings" }, ...run.config.flatMap(([key, value]) =>
          [make("dt", { textContent: key }), make("dd", { textContent: value })])))));
  }

  function show(number) {
    page.group = report.groups[number];
    page.hidden = new Set();
    byId("summary").textContent = page.group.summary;
    byId("notes").hidden = !page.group.notes.length;
    byId("notes").replaceChildren(...page.group.notes.map((note) => make("li", { textContent: note })));
    byId("image-note").hidden = !page.group.imageNote;
    byId("image-note").textContent = page.group.imageNote;
    document.querySelectorAll(".norm").forEach((element) => { element.textContent = page.group.norm; });
    page.parts.forEach((part) => part());
    page.startExplorer();
    meanings();
    configurations();
  }

  byId("heading").textContent = report.title;
  byId("version").textContent = report.version;
  byId("group-choice").hidden = report.groups.length < 2;
  byId("group").replaceChildren(...report.groups.map((group, number) => option(number, group.title)));
  byId("group").addEventListener("change", (event) => show(Number(event.target.value)));
  byId("theme").addEventListener("click", () => setTheme(theme === "dark" ? "light" : "dark"));
  darkSystem.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
  setTheme(theme);
  show(0);
})();

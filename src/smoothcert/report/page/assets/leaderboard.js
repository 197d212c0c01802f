/* The leaderboard: a table for each group of runs, ranked at the radius that the reader chooses. */
(() => {
  const Z = 1.959963984540054;
  const HEADINGS = ["Rank", "Run", "Certified accuracy %", "95 % interval", "ACR", "95 % interval", "p_A, distribution", "p_A: 5, 25, 50, 75, 95 %", "Abstain", "n", "Noise", "Guarantee", "Arithmetic"];
  const TEXT = new Set([1, 6, 10, 11, 12]);

  /* Wilson's interval, rounded outwards. */
  function interval(count, total) {
    const share = count / total, square = Z * Z / total;
    const centre = (share + square / 2) / (1 + square);
    const half = Z * Math.sqrt((share * (1 - share) + square / 4) / total) / (1 + square);
    const percent = (value, round) => (round(1000 * Math.min(Math.max(value, 0), 1) + (round === Math.floor ? 1e-9 : -1e-9)) / 10).toFixed(1);
    return `${percent(centre - half, Math.floor)}–${percent(centre + half, Math.ceil)}`;
  }

  function bars(run, total) {
    const most = Math.max(...run.bins);
    const names = run.bins.map((_, place) => place ? `${report.edges[place - 1]} to ${report.edges[place]}` : `at most ${report.edges[0]}`);
    const text = run.bins.map((count, place) => `${names[place]}: ${count}`).join(", ");
    return make("span", { className: "bars", role: "img", title: text, "aria-label": `Lower bounds on p_A of ${total} inputs. ${text}` },
      ...run.bins.map((count) => make("span", { style: { "height": `${2 + 26 * count / most}px` } })));
  }

  function table(group, radius) {
    const rows = group.runs.map((run) => ({ run, count: run.radii.filter((found) => found >= radius).length }));
    rows.sort((a, b) => b.count - a.count || Number(b.run.acr) - Number(a.run.acr) || (a.run.name < b.run.name ? -1 : 1));
    const head = make("tr", {}, ...HEADINGS.map((textContent, place) => make("th", { scope: "col", textContent, className: TEXT.has(place) ? "text" : "" })));
    const body = rows.map(({ run, count }) => {
      const rank = 1 + rows.filter((other) => other.count > count).length;
      const cells = [rank, null, (100 * count / group.inputs).toFixed(1), interval(count, group.inputs), run.acr, run.interval.join("–"), null, run.quantiles.join(", "), run.abstain, grouped(run.n), run.noise, run.guarantee, run.arithmetic];
      return make("tr", {}, ...cells.map((cell, place) => {
        if (place === 1) return make("th", { scope: "row", textContent: run.name });
        if (place === 6) return make("td", { className: "text" }, bars(run, group.inputs));
        return make("td", { textContent: String(cell), className: (TEXT.has(place) ? "text" : "") + (place === 2 && rank === 1 ? " best" : "") });
      }));
    });
    return [make("thead", {}, head), make("tbody", {}, ...body)];
  }

  function section(group, place) {
    const shown = make("table", { id: `table-${place}` });
    const input = make("input", { type: "number", id: `radius-${place}`, min: "0", step: "any", value: String(group.radius) });
    const choices = make("div", { className: "chips", role: "group", "aria-label": "Radii" }, ...group.radii.map((radius) => {
      const button = make("button", { type: "button", className: "quiet", textContent: String(radius) });
      button.addEventListener("click", () => { input.value = String(radius); show(); });
      return button;
    }));
    function show() {
      const radius = Number(input.value);
      if (input.value === "" || !(radius >= 0)) return;
      shown.replaceChildren(...table(group, radius));
      for (const button of choices.children) button.setAttribute("aria-pressed", String(Number(button.textContent) === radius));
    }
    input.addEventListener("input", show);
    show();
    return make("section", { "aria-label": group.title },
      make("h2", { textContent: group.title }),
      make("p", { className: "caption", textContent: `${group.inputs} inputs; ${group.norm} radius.` }),
      make("div", { className: "card" },
        make("div", { className: "controls" }, make("div", { className: "field" }, make("label", { textContent: "Rank at radius", htmlFor: input.id }), input), choices),
        make("div", { className: "scroll", role: "region", "aria-label": `${group.title}, scrolls sideways`, tabIndex: 0 }, shown)));
  }

  byId("heading").textContent = report.title;
  byId("alpha").textContent = report.alpha;
  byId("version").textContent = report.version;
  byId("notes").hidden = !report.notes.length;
  byId("notes").append(...report.notes.map((textContent) => make("li", { textContent })));
  byId("groups").append(...report.groups.map(section));
})();

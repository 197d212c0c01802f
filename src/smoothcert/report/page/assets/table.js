"use strict";
/* The overview: a row per run, sorted by any column. */
page.parts.push(() => {
  const { table } = page.group;
  const element = byId("overview-table");
  const textColumns = new Set(["run", "guarantee", "norm", "arithmetic", "runtime", "model", "seed"]);
  let sorted = null;
  let descending = true;

  function head() {
    const first = table.columns.findIndex((column) => column.key === "r0");
    const over = make("tr", { className: "over" },
      make("td", { colSpan: first }),
      make("th", { colSpan: table.radii.length, scope: "colgroup" },
        make("span", { textContent: `Certified accuracy at ${page.group.norm} radius` })),
      make("td", { colSpan: table.columns.length - first - table.radii.length }));
    const row = make("tr", {}, ...table.columns.map((column, place) => {
      const button = make("button", { type: "button", className: "sort", textContent: column.heading, title: column.help });
      button.addEventListener("click", () => sortBy(place));
      const cell = make("th", { scope: "col", className: textColumns.has(column.key) ? "text" : "" }, button);
      if (place === sorted) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      return cell;
    }));
    return make("thead", {}, over, row);
  }

  function body() {
    const order = table.rows.map((_, place) => place);
    if (sorted !== null) order.sort((a, b) => compare(table.rows[a][sorted][1], table.rows[b][sorted][1]) || a - b);
    return make("tbody", {}, ...order.map((run) => make("tr", {}, ...table.rows[run].map(([text], column) => {
      if (column === 0) return make("th", { scope: "row" }, make("span", { className: "name" }, dot(run), text));
      const best = table.best[column].includes(run);
      const textual = textColumns.has(table.columns[column].key);
      return make("td", { textContent: text, className: (best ? "best" : "") + (textual ? " text" : "") });
    }))));
  }

  function compare(a, b) {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = a < b ? -1 : a > b ? 1 : 0;
    return descending ? -order : order;
  }

  function sortBy(column) {
    descending = sorted === column ? !descending : typeof table.rows[0][column][1] !== "string";
    sorted = column;
    show();
    element.querySelectorAll(".sort")[column].focus();
  }

  function show() {
    element.replaceChildren(head(), body());
  }

  show();
});

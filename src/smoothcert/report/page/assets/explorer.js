"use strict";
/* Inputs: filter, sort, and go through them a page at a time. */
page.parts.push(() => {
  const { group } = page;
  const PER_PAGE = 60;
  const everybody = "any run";
  let found = [];
  let first = 0;
  let chosen = null;

  const control = Object.fromEntries(["by-class", "by-a", "by-b", "by-radius", "sort-by"].map((id) => [id, byId(id)]));
  const place = (id) => (control[id].value === "" ? null : Number(control[id].value));

  /* The radius in units of the last decimal, rounded up: whoever reaches it certifies what was asked. */
  function wanted() {
    const value = Number(control["by-radius"].value);
    return Number.isFinite(value) && value > 0 ? Math.ceil(value * unit() - 1e-6) : 0;
  }

  function certifies(run, input, radius) {
    return run.predict[input] === group.label[input] && run.radius[input] >= radius;
  }
  page.certifies = (run, input) => certifies(run, input, wanted());

  const provedBy = (run, input) => (run.predict[input] === group.label[input] ? run.radius[input] : -1);

  function matches(input) {
    const label = control["by-class"].value;
    if (label !== "" && group.label[input] !== Number(label)) return false;
    const radius = wanted();
    const [a, b] = [control["by-a"].value, control["by-b"].value];
    const holds = (who) => (who === everybody
      ? group.runs.some((run) => certifies(run, input, radius))
      : certifies(group.runs[Number(who)], input, radius));
    return (a === "" || holds(a)) && (b === "" || !holds(b));
  }

  /* The runs that sorting is about: those of the filter, or the first two. */
  function compared() {
    const a = Number.isInteger(place("by-a")) ? place("by-a") : 0;
    const b = Number.isInteger(place("by-b")) ? place("by-b") : group.runs.findIndex((_, run) => run !== a);
    return [group.runs[a], group.runs[b === -1 ? a : b]];
  }

  function order(inputs) {
    const by = control["sort-by"].value;
    if (by === "index") return inputs;
    const [a, b] = compared();
    const value = by === "difference" ? (input) => provedBy(a, input) - provedBy(b, input) : (input) => provedBy(a, input);
    const sign = by === "smallest" ? 1 : -1;
    return inputs.sort((x, y) => sign * (value(x) - value(y)) || x - y);
  }

  function tile(input) {
    const certified = group.runs.map((run) => certifies(run, input, wanted()));
    const names = group.runs.filter((_, run) => certified[run]).map((run) => run.name);
    const shown = compared()[0];
    const answer = shown.predict[input];
    const label = `Input ${group.index[input]}, ${className(group.label[input])}, certified by ${names.length ? names.join(", ") : "no run"}`;
    const button = make("button", { type: "button", className: "tile", "aria-label": label, tabIndex: input === chosen ? 0 : -1 });
    button.dataset.input = String(input);
    button.setAttribute("aria-pressed", String(input === chosen));
    if (group.images) {
      const canvas = make("canvas", { width: 1, height: 1 });
      drawImage(canvas, input);
      button.append(canvas);
    }
    button.append(
      make("span", { textContent: `#${group.index[input]}` }),
      make("span", { className: "what", textContent: className(group.label[input]) }),
      make("span", { className: "what", textContent: answer === -1 ? "abstains" : answer === group.label[input] ? `r ${radiusText(shown.radius[input])}` : "wrong" }),
      make("span", { className: "dots" }, ...certified.map((yes, run) =>
        make("i", { className: yes ? "yes" : "", style: { "--colour": colourName(run) } }))));
    button.addEventListener("click", () => choose(input));
    return button;
  }

  function showPage() {
    const shown = found.slice(first, first + PER_PAGE);
    byId("grid").replaceChildren(...shown.map(tile));
    const some = found.length === group.index.length ? "" : ` of ${grouped(group.index.length)}`;
    const [a, b] = compared().map((run) => run.name);
    const sorted = control["sort-by"].value === "difference" ? `, sorted by how much it is above that of ${b}` : "";
    byId("found").textContent = `${grouped(found.length)}${some} inputs; r is the radius of ${a}${sorted}`;
    const pages = Math.max(1, Math.ceil(found.length / PER_PAGE));
    byId("page-number").textContent = `page ${first / PER_PAGE + 1} of ${pages}`;
    byId("page-back").disabled = first === 0;
    byId("page-on").disabled = first + PER_PAGE >= found.length;
    byId("nothing").hidden = found.length > 0;
    byId("nothing").textContent = "No input is like that. Choose a smaller radius, other runs, or reset the filters.";
  }

  function search() {
    found = order(group.index.map((_, input) => input).filter(matches));
    first = 0;
    if (!found.includes(chosen)) chosen = found.length ? found[0] : null;
    else first = Math.floor(found.indexOf(chosen) / PER_PAGE) * PER_PAGE;
    showPage();
    page.showDetail(chosen, found.indexOf(chosen), found.length);
  }

  function choose(input, focus = false) {
    const previous = byId("grid").querySelector(`[data-input="${chosen}"]`);
    chosen = input;
    const wantedFirst = Math.floor(found.indexOf(input) / PER_PAGE) * PER_PAGE;
    if (wantedFirst !== first) {
      first = wantedFirst;
      showPage();
    } else if (previous) {
      previous.setAttribute("aria-pressed", "false");
      previous.tabIndex = -1;
    }
    const current = byId("grid").querySelector(`[data-input="${input}"]`);
    current.setAttribute("aria-pressed", "true");
    current.tabIndex = 0;
    if (focus) current.focus();
    page.showDetail(input, found.indexOf(input), found.length);
  }

  /* Go some inputs on; the keyboard stays where it was, in the grid or in the panel. */
  page.step = (by, focus) => {
    const at = found.indexOf(chosen) + by;
    if (at >= 0 && at < found.length) choose(found[at], focus);
  };

  function columns() {
    return getComputedStyle(byId("grid")).gridTemplateColumns.split(" ").length;
  }

  byId("grid").onkeydown = (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns() };
    if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    page.step(steps[event.key], true);
  };
  byId("page-back").onclick = () => choose(found[first - PER_PAGE]);
  byId("page-on").onclick = () => choose(found[first + PER_PAGE]);

  const classes = [...new Set(group.label)].sort((a, b) => a - b);
  const runs = group.runs.map((run, number) => option(number, run.name));
  control["by-class"].replaceChildren(option("", "all"), ...classes.map((label) => option(label, className(label))));
  control["by-a"].replaceChildren(option("", "–"), option(everybody, everybody), ...runs);
  control["by-b"].replaceChildren(option("", "–"), option(everybody, everybody), ...runs.map((each) => each.cloneNode(true)));
  control["sort-by"].replaceChildren(
    option("index", "index"), option("largest", "largest radius"), option("smallest", "smallest radius"),
    option("difference", "difference of radii"));
  const radii = group.table.radii;
  const usual = String(radii[Math.floor(radii.length / 2)]);
  const form = byId("filters");
  const reset = () => {
    form.reset();
    control["by-radius"].value = usual;
    search();
  };
  form.onsubmit = (event) => event.preventDefault();
  form.oninput = search;
  byId("reset-filters").onclick = reset;
  page.startExplorer = reset;
});

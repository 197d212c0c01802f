"use strict";
/* One input: its image, noisy copies, and what every run says about it. */
page.parts.push(() => {
  const { group } = page;
  const panel = byId("detail");
  const COPIES = 6;
  let noiseRun = group.runs.findIndex((run) => run.noise);
  let shown = null;
  let pixels = null;

  /* The noise of a run for an input, with its own scale where one was chosen for it. */
  function noiseFor(run, input) {
    const sigma = run.sigma ? run.sigma[input] : null;
    return sigma === null ? run.noise : { ...run.noise, sigma };
  }

  function noiseText(noise) {
    if (noise.name === "gaussian") return `Gaussian noise, σ = ${noise.sigma}`;
    if (noise.name === "uniform") return `uniform noise, λ = ${noise.lam}`;
    return `discrete noise, a = ${noise.keep}, K = ${noise.levels}`;
  }

  function pictures(input) {
    if (!group.images) return [];
    const original = make("canvas", { "aria-label": `Input ${group.index[input]}`, role: "img" });
    const ready = drawImage(original, input);
    if (noiseRun === -1) {
      return [make("div", { className: "pictures" }, original)];
    }
    const copies = Array.from({ length: COPIES }, () => make("canvas", { "aria-label": "Noisy copy", role: "img" }));
    const draw = () => copies.forEach((canvas) => drawNoisy(canvas, pixels, noiseFor(group.runs[noiseRun], input)));
    ready.then((found) => {
      if (shown !== input) return;
      pixels = found;
      draw();
    });
    const words = make("span");
    const tell = () => { words.textContent = `Fresh ${noiseText(noiseFor(group.runs[noiseRun], input))}: an illustration, not the samples of the run${group.images.smaller ? "; the image was made smaller" : ""}${group.images.lossy ? "; compressed" : ""}.`; };
    const who = make("select", { "aria-label": "Noise of which run" }, ...group.runs.flatMap((run, place) => (run.noise ? [option(place, run.name)] : [])));
    who.value = String(noiseRun);
    who.addEventListener("change", () => { noiseRun = Number(who.value); tell(); draw(); });
    const again = make("button", { type: "button", className: "quiet", textContent: "Draw again" });
    again.addEventListener("click", draw);
    tell();
    return [
      make("div", { className: "pictures" }, original, make("div", { className: "copies" }, ...copies)),
      make("div", { className: "drawn" }, again, group.runs.length > 1 ? who : null),
      make("p", { className: "caption small" }, words),
    ];
  }

  function verdict(run, input) {
    const answer = run.predict[input];
    if (answer === -1) return make("span", { className: "verdict", textContent: "abstains" });
    const right = answer === group.label[input];
    return make("span", { className: `verdict ${right ? "right" : "wrong"}`, textContent: `${right ? "✓" : "✗"} ${className(answer)}` });
  }

  function choiceText(run, input) {
    if (!run.choice) return null;
    const [choice, radius] = [run.choice[input], radiusText(run.choiceRadius[input])];
    if (choice === -1) return "The selector's choice is not certified.";
    if (run.chooses === "experts") return `Expert ${choice + 1} was chosen, certified within ${radius}.`;
    return choice === 1 ? `The smoothed classifier was chosen, certified within ${radius}.` : `The core was chosen, certified within ${radius}; its answer has no radius.`;
  }

  /* Votes of all inputs stand in one list; where those of an input begin is counted once. */
  function beginnings(votes) {
    if (!votes.first) {
      let sum = 0;
      votes.first = votes.kept.map((kept) => { sum += kept; return sum - kept; });
    }
    return votes.first;
  }

  function bars(run, place, input) {
    if (!run.votes) return make("p", { className: "facts", textContent: "The log kept no votes." });
    const { n, kept, classes, counts } = run.votes;
    if (!kept[input]) return make("p", { className: "facts", textContent: "No votes were taken of a smoothed classifier." });
    const begin = beginnings(run.votes)[input];
    const rows = Array.from({ length: kept[input] }, (_, at) => [classes[begin + at], counts[begin + at]]);
    const rest = n[input] - rows.reduce((sum, [, count]) => sum + count, 0);
    const list = make("dl", { className: "votes", style: { "--colour": colourName(place) } });
    const add = (name, count, isTrue) => {
      const mark = isTrue ? "true" : "";
      const fill = make("span", { className: "fill", style: { width: `${(100 * count) / n[input]}%` } });
      list.append(
        make("dt", { className: mark, textContent: name, title: name }),
        make("dd", { className: mark }, make("div", { className: "bar-box" }, fill)),
        make("dd", { className: `number ${mark}`, textContent: grouped(count) }));
    };
    rows.slice(0, 4).forEach(([label, count]) => add(className(label), count, label === group.label[input]));
    const others = rest + rows.slice(4).reduce((sum, [, count]) => sum + count, 0);
    if (others) add("others", others, false);
    return list;
  }

  function answer(run, place, input) {
    const certified = page.certifies(run, input);
    const facts = [run.predict[input] === -1 ? null : `radius ${radiusText(run.radius[input])}`,
      run.bound && run.votes && run.votes.kept[input] ? `p ≥ ${(run.bound[input] / 10000).toFixed(4)}` : null,
      run.upper && run.upper[input] !== null ? `others ≤ ${(run.upper[input] / 10000).toFixed(4)}` : null,
      run.sigma && run.sigma[input] !== null ? `σ ${run.sigma[input]}` : run.noiseText === "–" ? null : run.noiseText,
      run.votes ? `n ${grouped(run.votes.n[input])}` : null];
    const choice = choiceText(run, input);
    return make("div", { className: "answer" },
      make("h4", {}, dot(place), run.name, make("span", {
        className: certified ? "badge yes" : "badge", textContent: `${certified ? "certified" : "not certified"} at ${byId("by-radius").value || 0}` })),
      make("p", {}, verdict(run, input), " ", make("span", { className: "facts", textContent: facts.filter(Boolean).join(" · ") })),
      choice ? make("p", { className: "facts", textContent: choice }) : null,
      bars(run, place, input));
  }

  page.showDetail = (input, at, total) => {
    shown = input;
    const focused = panel.contains(document.activeElement) ? document.activeElement.dataset.step : undefined;
    if (input === null) {
      panel.replaceChildren(make("p", { className: "empty", textContent: "No input to show." }));
      return;
    }
    const step = (by, text, label) => {
      const button = make("button", { type: "button", className: "quiet", textContent: text, "aria-label": label, disabled: at + by < 0 || at + by >= total });
      button.dataset.step = String(by);
      button.addEventListener("click", () => page.step(by, false));
      return button;
    };
    const buttons = [step(-1, "‹", "Previous input"), step(1, "›", "Next input")];
    panel.replaceChildren(
      make("header", {},
        make("div", {}, make("h3", { textContent: `Input ${group.index[input]}: ${className(group.label[input])}` }),
          make("span", { className: "of", textContent: `${grouped(at + 1)} of ${grouped(total)}` })),
        make("div", { className: "steps" }, ...buttons)),
      ...pictures(input),
      make("div", { className: "answers" }, ...group.runs.map((run, place) => answer(run, place, input))));
    if (focused !== undefined) {
      const same = buttons.find((button) => button.dataset.step === focused);
      (same.disabled ? panel : same).focus();
    }
  };

  panel.onkeydown = (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (!(event.key in steps) || event.target.tagName === "SELECT") return;
    event.preventDefault();
    page.step(steps[event.key], false);
  };
});

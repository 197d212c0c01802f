"use strict";
/* What all parts of the page share: the data, the group of runs that is shown, and how elements are made. */
const report = JSON.parse(document.getElementById("report-data").textContent);
const page = { group: report.groups[0], hidden: new Set(), parts: [] };

const byId = (id) => document.getElementById(id);

/* An element with properties and children. Text goes in as text: nothing that comes from a file is read as HTML. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "style") for (const [key, setting] of Object.entries(value)) element.style.setProperty(key, setting);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function option(value, text) {
  return make("option", { value: String(value), textContent: text });
}

/* The colour of a run, which it keeps everywhere; after eight runs colours repeat with other dashes. */
const COLOURS = 8;
const DASHES = ["solid", "dash", "dot", "dashdot"];
const colourName = (run) => `var(--run-${run % COLOURS})`;
const dash = (run) => DASHES[Math.floor(run / COLOURS) % DASHES.length];
const dot = (run) => make("span", { className: "dot", style: { "--colour": colourName(run) } });

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/* Charts read a few tags in text, so those of names are made harmless there. */
function chartText(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/* Radii are whole numbers of the last decimal, rounded down before they came here. */
const unit = () => 10 ** page.group.decimals;
const radiusText = (value) => (value / unit()).toFixed(page.group.decimals);

function className(label) {
  const names = page.group.images ? page.group.images.classes : [];
  return names[label] !== undefined ? names[label] : String(label);
}

const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");

/* Layout that all charts share, in the colours of the theme. */
function chartLayout(extra) {
  const ink = cssColour("--soft");
  const axis = { gridcolor: cssColour("--grid"), zerolinecolor: cssColour("--line"), linecolor: cssColour("--line"), ticks: "", automargin: true };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
    margin: { l: 52, r: 16, t: 12, b: 48 },
    hoverlabel: { bgcolor: cssColour("--card"), bordercolor: cssColour("--line"), font: { color: cssColour("--ink"), size: 13 } },
    dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
    ...extra,
  };
  layout.xaxis = { ...axis, ...extra.xaxis };
  layout.yaxis = { ...axis, ...extra.yaxis };
  return layout;
}

const CHART_SETTINGS = { displayModeBar: false, responsive: true, displaylogo: false };

/* How elements and numbers are made. Text goes in as text: nothing that comes from a server or a file is read as HTML. */

export const byId = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/* Whole numbers with narrow spaces: 12 000. */
export const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");

/* A radius in three decimals, rounded down: no printed radius is larger than the proved one. */
export function radiusText(radius, norm) {
  if (norm === "l0") return String(Math.floor(radius));
  const nearest = Number(radius.toFixed(3));
  return (nearest > radius ? nearest - 0.001 : nearest).toFixed(3);
}

/* Settings with a name, in one line: gaussian (sigma 0.5, grid 255). */
export function settingsText({ name, ...settings }) {
  const text = (value) => (Array.isArray(value) ? value.join(" and ") : typeof value === "object" ? JSON.stringify(value) : value);
  const given = Object.entries(settings).filter(([, value]) => value !== null);
  return given.length ? `${name} (${given.map(([key, value]) => `${key} ${text(value)}`).join(", ")})` : name;
}

export const NORMS = { l2: "ℓ2", l1: "ℓ1", linf: "ℓ∞", l0: "ℓ0" };

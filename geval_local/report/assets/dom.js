// Elements from names and texts. Nothing in these scripts parses markup: a text becomes a text node and nothing else.

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  make(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const byId = (id) => document.getElementById(id);

const isNumber = (value) => typeof value === "number";
const number = (value, digits = 2) => (isNumber(value) ? value.toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1") : "–");
const count = (value) => value.toLocaleString("en");
const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

// A probability that is not 0 or 1 does not show as 0 or 1.
function probability(p) {
  if (!isNumber(p)) return "–";
  if (p > 0 && p < 0.0005) return "<.001";
  if (p < 1 && p >= 0.9995) return ">.999";
  return p.toFixed(3);
}

function mean(values) {
  const found = values.filter(isNumber);
  return found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : null;
}

// The first characters of a text without ever walking all of a long one.
function snippet(text, length = 160) {
  const start = text.slice(0, length * 4).replace(/\s+/g, " ").trim();
  return start.length > length || text.length > length * 4 ? `${start.slice(0, length)} …` : start;
}

// A name is shortened in its middle: its end may tell it from others.
function shortened(name, length) {
  const line = name.replace(/\s+/g, " ").trim();
  return line.length <= length ? line : `${line.slice(0, Math.floor((length - 1) / 2))}…${line.slice(line.length - Math.floor(length / 2))}`;
}

function later(handler, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(handler, milliseconds);
  };
}

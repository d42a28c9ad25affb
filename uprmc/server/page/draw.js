// What panels are drawn with: elements, tables, sparklines, numbers for people.
//
// What is made is compared with what is there, so that only what has changed is touched: a selection,
// the focus, and a row that is about to be clicked stay. All text is set as text, so nothing that a
// stranger named can become markup.
"use strict";

const KEPT = 60; // samples in a sparkline
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const histories = new Map();

function make(name, attributes = {}, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...children);
  return found;
}

const number = (value) => Math.round(value).toLocaleString("en");

function bytes(value) {
  let unit = 0;
  for (; value >= 1024 && unit < UNITS.length - 1; unit++) value /= 1024;
  return `${value.toLocaleString("en", { maximumFractionDigits: unit ? 1 : 0 })} ${UNITS[unit]}`;
}

function span(seconds) {
  if (seconds < 60) return `${seconds.toLocaleString("en", { maximumFractionDigits: 1 })} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

function table(columns, rows) {
  const head = make("tr");
  for (const [title, kind] of columns) {
    head.append(make("th", kind ? { class: kind, scope: "col" } : { scope: "col" }, title));
  }
  const body = make("tbody");
  for (const row of rows) {
    if (row instanceof Node) {
      body.append(row);
      continue;
    }
    const line = make("tr");
    row.forEach((cell, place) => {
      const kind = columns[place][1];
      line.append(make("td", kind ? { class: kind } : {}, cell instanceof Node ? cell : String(cell)));
    });
    body.append(line);
  }
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), body));
}

function facts(rows) {
  const body = make("tbody");
  for (const [title, value] of rows) {
    body.append(make("tr", {}, make("th", { scope: "row" }, title),
      make("td", { class: "number" }, value instanceof Node ? value : String(value))));
  }
  return make("table", {}, body);
}

const nothing = (text) => make("p", { class: "none" }, text);

function errors(rows) {
  return rows.filter(([, error]) => error)
    .map(([name, error]) => make("p", { class: "error" }, `${name}: ${error}`));
}

function idle(section, text) {
  section.append(nothing(text));
  return true;
}

// Makes `old` look like `fresh`; children with a data-key are found again by it.
function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

const keyOf = (node) => node.dataset?.key;

function morphChildren(old, fresh) {
  const keyed = new Map([...old.childNodes].filter(keyOf).map((each) => [keyOf(each), each]));
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const known = keyOf(wanted) ? keyed.get(keyOf(wanted)) : at && !keyOf(at) ? at : null;
    if (known && known.nodeName === wanted.nodeName) {
      if (known === at) at = at.nextSibling;
      else old.insertBefore(known, at);
      morph(known, wanted);
    } else {
      old.insertBefore(wanted, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function remember(name, value) {
  const history = histories.get(name) ?? [];
  history.push(value);
  if (history.length > KEPT) history.shift();
  histories.set(name, history);
  return history;
}

function spark(values) {
  const most = Math.max(1, ...values);
  const points = values.map((value, place) => `${
    ((KEPT - values.length + place) * 100 / (KEPT - 1)).toFixed(1)},${(19 - 18 * value / most).toFixed(1)}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 100 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  return svg;
}

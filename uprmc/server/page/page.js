// The page of a node: it reads samples from /live and gives each panel what has changed.
//
// A panel is a title and a function of (its section, its part of the sample, seconds since the
// sample before). All text is set as text, so nothing that a stranger named can become markup.
"use strict";

const KEPT = 60; // samples in a sparkline
const STATES = ["active", "replica", "pending", "dead"];
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

function remember(name, value) {
  const history = histories.get(name) ?? [];
  history.push(value);
  if (history.length > KEPT) history.shift();
  histories.set(name, history);
  return history;
}

function spark(values) {
  const most = Math.max(1, ...values);
  const points = values.map((value, place) =>
    `${(place * 100 / (KEPT - 1)).toFixed(1)},${(19 - 18 * value / most).toFixed(1)}`);
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

// --- panels ---------------------------------------------------------------------------------

const before = {};

function rates(name, counters, seconds) {
  const last = before[name] ?? counters;
  before[name] = { ...counters };
  return Object.entries(counters).map(([key, value]) => {
    const rate = seconds > 0 ? Math.max(0, value - (last[key] ?? 0)) / seconds : 0;
    return [key.replaceAll("_", " "), value, rate, spark(remember(`${name}.${key}`, rate))];
  });
}

function showHead(data) {
  const places = Object.entries(data.listeners).map(([name, place]) => `${name} ${place}`);
  document.getElementById("about").textContent = [
    `version ${data.version}`, `${data.core} core`, `up ${span(data.uptime_s)}`,
    `${number(data.items)} documents`, `${number(data.connections)} connections`, ...places,
  ].join(" · ");
  document.title = `uprmc ${data.listeners.memcached ?? ""}`;
}

function nodePanel(section, data, seconds) {
  showHead(data);
  const troubled = Object.entries(data.components).filter(([, state]) => state !== "up");
  const parts = troubled.map(([name, state]) => [name,
    make("span", ["off", "idle"].includes(state) ? {} : { class: "error" }, state)]);
  const traffic = rates("traffic", { received: data.bytes_read, sent: data.bytes_written }, seconds)
    .map(([name, , rate, line]) => [name, `${bytes(rate)}/s`, line]);
  section.append(
    facts([["serving", data.ready ? "yes" : "warming up"],
      ["connections", `${number(data.connections)} of ${number(data.connections_max)}`], ...parts,
      [parts.length ? "all other parts" : "all parts", "up"]]),
    table([["bytes"], ["now", "number"], ["last minute", "number"]], traffic));
}

function operationsPanel(section, data, seconds) {
  section.append(table([["operation"], ["total", "number"], ["per second", "number"],
    ["last minute", "number"]],
    rates("operations", data, seconds)
      .map(([name, total, rate, line]) => [name, number(total), number(rate), line])));
}

function memoryPanel(section, data) {
  const meter = make("meter", { min: 0, max: data.quota, value: data.used, low: data.low_mark,
    high: data.high_mark, optimum: 0, "aria-label": "memory quota in use" });
  const holders = data.holders.filter((each) => each[1] > 0).sort((one, other) => other[1] - one[1]);
  section.append(meter, facts([["documents", `${bytes(data.used)} of ${bytes(data.quota)}`],
    ["eviction begins above", bytes(data.high_mark)]]),
  table([["who has it"], ["memory", "number"], ["number", "number"]],
    holders.map(([name, size, count, , what]) => [what.startsWith(name) ? what : `${name}: ${what}`, bytes(size), number(count)])));
}

function queuePanel(section, data, seconds) {
  const rows = rates("queue", { commits: data.commits, flushed: data.flushed }, seconds)
    .map(([name, total, rate, line]) => [name, number(total), number(rate), line]);
  section.append(facts([["changes not on disk yet", number(data.waiting)],
    ["failed commits", number(data.failures)],
    ["file", `${bytes(data.disk_file_bytes)}, ${bytes(data.disk_free_bytes)} of it free`]]));
  if (data.error) section.append(make("p", { class: "error" }, data.error));
  section.append(table([["disk"], ["total", "number"], ["per second", "number"],
    ["last minute", "number"]], rows));
}

const vbuckets = new Map();
let chosen = null;

function describe([name, state, high, persisted, items, branches]) {
  return `vBucket ${name}: ${state}, seqno ${number(high)}, on disk ${number(persisted)}, ` +
    `${number(items)} documents, ${branches} ${branches === 1 ? "branch" : "branches"}`;
}

function vbucketPanel(section, rows) {
  for (const row of rows) vbuckets.set(row[0], row);
  let map = section.querySelector(".map");
  if (!map) {
    section.append(make("p", { class: "legend" }), make("div", { class: "map" }),
      make("div", { id: "vbucket", "aria-live": "polite" }, nothing("Choose a vBucket to see its history.")));
    map = section.querySelector(".map");
    map.addEventListener("click", (event) => {
      const at = event.target.dataset.number;
      if (at !== undefined) choose(Number(at));
    });
  }
  if (map.childElementCount !== vbuckets.size) {
    map.replaceChildren(...[...vbuckets.keys()].sort((a, b) => a - b).map((name) =>
      make("button", { type: "button", "data-number": name })));
    rows = [...vbuckets.values()];
  }
  const buttons = new Map([...map.children].map((each) => [Number(each.dataset.number), each]));
  for (const row of rows) {
    const button = buttons.get(row[0]);
    button.dataset.state = row[1];
    button.classList.toggle("behind", row[3] < row[2]);
    button.title = describe(row);
    button.setAttribute("aria-label", describe(row));
  }
  const counts = Object.fromEntries(STATES.map((state) => [state, 0]));
  for (const row of vbuckets.values()) counts[row[1]]++;
  section.querySelector(".legend").replaceChildren(
    ...STATES.map((state) => make("span", {}, make("i", { class: state }), `${counts[state]} ${state}`)),
    make("span", {}, "pale: not all on disk"));
}

async function choose(name) {
  chosen = name;
  const place = document.getElementById("vbucket");
  for (const each of document.querySelectorAll(".map button")) {
    each.setAttribute("aria-pressed", String(Number(each.dataset.number) === name));
  }
  try {
    const answer = await fetch(`vbucket.json?vbucket=${name}`);
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    if (chosen !== name) return;
    place.replaceChildren(
      make("h3", {}, `vBucket ${name}`),
      facts([["state", found.state], ["term", found.term], ["high seqno", number(found.high_seqno)],
        ["on disk", number(found.persisted_seqno)], ["purged up to", number(found.purge_seqno)],
        ["documents", number(found.items)]]),
      table([["branch of history, newest first"], ["begins after seqno", "number"]],
        found.failover_log.map((each) => [each.vb_uuid, number(each.seqno)])));
  } catch (error) {
    place.replaceChildren(make("p", { class: "error" }, String(error.message)));
  }
}

function streamsPanel(section, rows) {
  if (!rows.length) return section.append(nothing("Nobody follows this node."));
  section.append(table([["consumer"], ["kind"], ["streams", "number"], ["items behind", "number"],
    ["bytes", "number"], ["time", "number"]], rows.map((each) => [each.name, each.kind,
    number(each.streams), number(each.items), bytes(each.bytes), span(each.seconds)])));
}

function replicationPanel(section, rows) {
  if (!rows.length) return section.append(nothing("This node follows no other node."));
  section.append(table([["source"], ["state"], ["vBuckets", "number"], ["items behind", "number"],
    ["time", "number"], ["last error"]], rows.map((each) => [each.place, each.state,
    `${each.streaming} of ${each.vbuckets}`, number(each.lag_items), span(each.lag_s),
    each.last_error])));
}

function leasesPanel(section, rows) {
  if (!rows.length) return section.append(nothing("No snapshot is held."));
  section.append(table([["lease"], ["vBuckets", "number"], ["ends in", "number"]],
    rows.map((each) => [each.id, number(each.vbuckets), span(each.ends_s)])));
}

function tapPanel(section, data) {
  section.append(facts([["clients", number(data.clients)], ["items sent", number(data.items_sent)],
    ["messages taken", number(data.pushed)], ["messages refused", number(data.pushes_refused)]]));
}

function watermarksPanel(section, data) {
  section.append(facts([["rows", number(data.rows)]]));
  if (!data.pinned.length) return section.append(nothing("No client keeps deletions alone."));
  section.append(table([["client"], ["kind"], ["deletions kept", "number"], ["bytes", "number"]],
    data.pinned.map((each) => [each.id, each.kind, number(each.number), bytes(each.bytes)])));
}

function linksPanel(section, rows) {
  if (!rows.length) return section.append(nothing("There are no links to other data centres."));
  section.append(table([["link"], ["to"], ["state"], ["behind", "number"], ["error"]],
    rows.map((each) => [each.name, each.to, each.state, span(each.lag_s), each.error])));
}

function indexPanel(section, data) {
  section.append(facts([["views", data.views], ["process", data.state],
    ["restarts", number(data.restarts)]]));
  if (data.error) section.append(make("p", { class: "error" }, data.error));
}

function eventsPanel(section, rows) {
  if (!rows.length) return section.append(nothing("Nothing has happened to data yet."));
  section.append(table([["time"], ["event"], ["details"]], rows.map(({ time, event, ...rest }) =>
    [time, event, Object.entries(rest).map(([key, value]) => `${key} ${value}`).join(", ")])));
}

// Name in the sample -> title, function, whether it takes the whole width, whether it keeps its
// contents from one sample to the next.
const PANELS = {
  node: ["Node", nodePanel],
  operations: ["Operations", operationsPanel],
  memory: ["Memory", memoryPanel],
  queue: ["Write queue and disk", queuePanel],
  vbuckets: ["vBuckets", vbucketPanel, true, true],
  streams: ["Streams", streamsPanel, true],
  replication: ["Replication", replicationPanel],
  leases: ["Leases", leasesPanel],
  tap: ["TAP", tapPanel],
  watermarks: ["Watermarks", watermarksPanel],
  links: ["Links to data centres", linksPanel],
  index: ["Indexes", indexPanel],
  events: ["Events", eventsPanel, true],
};

// --- what comes from the node ---------------------------------------------------------------

const sections = new Map();

function sectionOf(name) {
  if (!sections.has(name)) {
    const [title, , wide] = PANELS[name];
    const section = make("section", { id: `panel-${name}`, ...(wide ? { class: "wide" } : {}) },
      make("h2", {}, title));
    sections.set(name, section);
    document.getElementById("panels").replaceChildren(
      ...Object.keys(PANELS).filter((each) => sections.has(each)).map((each) => sections.get(each)));
  }
  return sections.get(name);
}

// Counters need every sample, also one in which nothing has changed: a rate of nothing is 0.
const COUNTING = ["node", "operations", "queue"];
const newest = {};
let lastAt = 0;

function take(sample) {
  const now = performance.now() / 1000;
  const seconds = lastAt ? now - lastAt : 0;
  lastAt = now;
  Object.assign(newest, sample);
  for (const name of sample.gone ?? []) vbuckets.delete(name);
  for (const [name, [, render, , keeps]] of Object.entries(PANELS)) {
    if (!(name in sample) && !(COUNTING.includes(name) && name in newest)) continue;
    const section = sectionOf(name);
    if (!keeps) section.replaceChildren(section.firstChild);
    render(section, sample[name] ?? newest[name], seconds);
  }
}

function contact(state, text) {
  const place = document.getElementById("contact");
  if (place.dataset.state === state) return;
  place.dataset.state = state;
  place.textContent = text;
}

const source = new EventSource("live");
source.onmessage = (event) => {
  contact("live", "live");
  take(JSON.parse(event.data));
};
source.onerror = () => {
  lastAt = 0;
  contact("lost", source.readyState === EventSource.CLOSED
    ? "the node refuses this page: load it again" : "connection lost, trying again");
};

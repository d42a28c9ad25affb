// The panels: each is a title and a function of (its section, its part of the sample, seconds since
// the sample before). It returns whether there is nothing to see: then the panel is small, and last.
"use strict";

const STATES = ["active", "replica", "pending", "dead"];
const ASK_MS = 3000; // between questions about the consumer whose row is open

const before = {};

function rates(name, counters, seconds) {
  const last = before[name] ?? counters;
  before[name] = { ...counters };
  return Object.entries(counters).map(([key, value]) => {
    const rate = seconds > 0 ? Math.max(0, value - (last[key] ?? 0)) / seconds : 0;
    const history = seconds > 0 ? remember(`${name}.${key}`, rate) : histories.get(`${name}.${key}`) ?? [];
    return [key.replaceAll("_", " "), value, rate, spark(history)];
  });
}

function showHead(data) {
  const places = Object.entries(data.listeners).map(([name, place]) => `${name} ${place}`);
  document.getElementById("about").textContent = [`version ${data.version}`, `${data.core} core`,
    `up ${span(data.uptime_s)}`, ...places].join(" · ");
}

function nodePanel(section, data, seconds) {
  showHead(data);
  const quiet = ["off", "idle"];
  const others = Object.entries(data.components).filter(([, state]) => state !== "up");
  const parts = others.map(([name, state]) => [name,
    make("span", quiet.includes(state) ? {} : { class: "error" }, state)]);
  const traffic = rates("traffic", { received: data.bytes_read, sent: data.bytes_written }, seconds)
    .map(([name, , rate, line]) => [name, `${bytes(rate)}/s`, line]);
  section.append(
    facts([["serving", data.ready ? "yes" : "warming up"],
      ["connections", `${number(data.connections)} of ${number(data.connections_max)}`], ...parts,
      [parts.length ? "all other parts" : "all parts", "up"]]),
    table([["bytes"], ["now", "number"], ["last minute", "number"]], traffic));
}

const ALWAYS = ["gets", "hits", "sets", "streamed"]; // the others are shown once they have happened

function operationsPanel(section, data, seconds) {
  section.append(table([["operation"], ["total", "number"], ["per second", "number"],
    ["last minute", "number"]],
    rates("operations", data, seconds).filter(([name, total]) => total || ALWAYS.includes(name))
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

// --- consumers: a row opens to its vBuckets -------------------------------------------------

const STREAM_COLUMNS = [["vBucket", "number"], ["behind", "number"], ["stream"], ["here"],
  ["sent up to", "number"], ["high seqno", "number"], ["on its disk", "number"]];
let opened = null;
let detail = null;

function streamsPanel(section, rows) {
  if (!rows.length) {
    opened = null;
    return idle(section, "Nobody follows this node.");
  }
  const lines = [];
  for (const each of rows) {
    const name = each.kind === "other" ? each.name : make("button", { type: "button",
      "data-consumer": each.name, "aria-expanded": String(each.name === opened) }, each.name);
    const line = make("tr", { "data-key": `row ${each.name}` });
    for (const [cell, kind] of [[name], [span(each.seconds), "number"], [number(each.items), "number"],
      [bytes(each.bytes), "number"], [number(each.streams), "number"], [each.kind]]) {
      line.append(make("td", kind ? { class: kind } : {}, cell));
    }
    lines.push(line);
    if (each.name === opened) lines.push(make("tr", { "data-key": `streams ${each.name}` },
      make("td", { colspan: 6 }, make("div", { class: "detail" }, ...streamsOf()))));
  }
  section.append(table([["consumer"], ["behind", "number"], ["items", "number"], ["bytes", "number"],
    ["streams", "number"], ["kind"]], lines));
  return false;
}

function streamsOf() {
  if (!detail) return [nothing("asking")];
  if (detail.error) return [make("p", { class: "error" }, detail.error)];
  const states = Object.entries(detail.states).map(([state, count]) => `${number(count)} ${state}`);
  const shown = detail.rows.length < detail.streams
    ? `; shown are the ${detail.rows.length} that are furthest behind` : "";
  return [make("p", {}, `${number(detail.streams)} streams: ${states.join(", ")}; ` +
      `${number(detail.behind)} behind${shown}`),
    table(STREAM_COLUMNS, detail.rows.map((row) => [row.vbucket, number(row.left), row.state,
      row.vbucket_state, number(row.seqno), number(row.high_seqno),
      row.persisted ? number(row.persisted) : "–"]))];
}

async function askStreams() {
  const name = opened;
  if (name === null || document.hidden) return;
  let found;
  try {
    const answer = await fetch(`consumer.json?name=${encodeURIComponent(name)}`);
    found = await answer.json();
  } catch (error) {
    found = { error: String(error.message) };
  }
  if (name !== opened) return;
  detail = found;
  show("streams", newest.streams, 0);
}

function openConsumer(name) {
  opened = name === opened ? null : name;
  detail = null;
  show("streams", newest.streams, 0);
  askStreams();
}

document.addEventListener("click", (event) => {
  const name = event.target.dataset?.consumer;
  if (name !== undefined) openConsumer(name);
});
setInterval(askStreams, ASK_MS);

function replicationPanel(section, rows) {
  if (!rows.length) return idle(section, "This node follows no other node.");
  section.append(table([["source"], ["state"], ["vBuckets", "number"], ["behind", "number"]],
  rows.map((each) => [each.place, each.state, `${each.streaming} of ${each.vbuckets}`,
    each.lag_items ? `${number(each.lag_items)}, ${span(each.lag_s)}` : span(each.lag_s)])),
  ...errors(rows.map((each) => [each.place, each.last_error])));
}

function leasesPanel(section, rows) {
  if (!rows.length) return idle(section, "No snapshot is held.");
  section.append(table([["lease"], ["vBuckets", "number"], ["ends in", "number"]],
    rows.map((each) => [each.id, number(each.vbuckets), span(each.ends_s)])));
}

function tapPanel(section, data) {
  if (!Object.values(data).some(Boolean)) return idle(section, "No TAP client has come.");
  section.append(facts([["clients", number(data.clients)], ["items sent", number(data.items_sent)],
    ["messages taken", number(data.pushed)], ["messages refused", number(data.pushes_refused)]]));
}

function watermarksPanel(section, data) {
  if (!data.rows) return idle(section, "No client has registered.");
  section.append(facts([["rows", number(data.rows)]]));
  if (!data.pinned.length) return section.append(nothing("No client keeps deletions alone."));
  section.append(table([["client"], ["kind"], ["deletions kept", "number"], ["bytes", "number"]],
    data.pinned.map((each) => [each.id, each.kind, number(each.number), bytes(each.bytes)])));
}

function linksPanel(section, rows) {
  if (!rows.length) return idle(section, "There are no links to other data centres.");
  section.append(table([["link"], ["to"], ["state"], ["behind", "number"]],
    rows.map((each) => [each.name, each.to, each.state, span(each.lag_s)])),
  ...errors(rows.map((each) => [each.name, each.error])));
}

function indexPanel(section, data) {
  if (["off", "idle"].includes(data.state)) return idle(section, "There are no views.");
  section.append(facts([["designs", data.designs.join(", ") || "none"], ["views", data.views], ["process", data.state],
    ["restarts", number(data.restarts)]]));
  if (data.error) section.append(make("p", { class: "error" }, data.error));
}

function eventsPanel(section, rows) {
  if (!rows.length) return idle(section, "Nothing has happened to data yet.");
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

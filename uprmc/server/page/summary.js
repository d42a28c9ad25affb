// What an operator wants to know first: what is wrong, the worst first, and a few numbers.
"use strict";

const SLOW_S = 60; // who is further behind is named
const REFUSED_S = 60; // writes that were refused are named for this long
const refusals = {};

function refused(kind) {
  const count = newest.memory.refused[kind];
  const known = refusals[kind] ??= { count, at: -Infinity };
  if (count > known.count) Object.assign(known, { count, at: lastAt });
  return lastAt - known.at < REFUSED_S;
}

// What is wrong, the worst first: [how bad, text, panel].
function* problems() {
  const { node, memory, queue, streams, replication, links, index } = newest;
  if (!node.ready) yield ["bad", "This node warms up and serves nobody yet.", "node"];
  if (queue.error) yield ["bad", `The disk refuses commits: ${queue.error}`, "queue"];
  for (const kind of ["memory", "disk"]) {
    if (refused(kind)) yield ["bad", `Writes were refused for lack of ${kind}.`, kind === "disk" ? "queue" : "memory"];
  }
  for (const each of replication) {
    if (each.state !== "open" || each.last_error) {
      yield ["bad", `The node at ${each.place} is not followed: ${each.last_error || each.state}`, "replication"];
    } else if (each.lag_s > SLOW_S) {
      yield ["warn", `This node is ${span(each.lag_s)} behind ${each.place}.`, "replication"];
    }
  }
  for (const each of links) {
    if (each.error) yield ["bad", `The link ${each.name} has stopped: ${each.error}`, "links"];
    else if (each.lag_s > SLOW_S) yield ["warn", `The link ${each.name} is ${span(each.lag_s)} behind.`, "links"];
  }
  if (index.error) yield ["bad", `The index does not run: ${index.error}`, "index"];
  if (node.connections >= node.connections_max) yield ["bad", "No more connections are let in.", "node"];
  if (memory.used > memory.high_mark) yield ["warn", "Memory is full: values are evicted.", "memory"];
  const slow = streams.filter((each) => each.seconds > SLOW_S);
  if (slow.length) {
    yield ["warn", `${slow.length === 1 ? "A consumer is" : `${number(slow.length)} consumers are`} more than a ` +
      `minute behind, ${slow[0].name} by ${span(Math.max(...slow.map((each) => each.seconds)))}.`, "streams"];
  }
  const states = Object.fromEntries(STATES.map((state) => [state, 0]));
  for (const row of vbuckets.values()) states[row[1]]++;
  if (states.pending) yield ["warn", `${number(states.pending)} vBuckets wait to become active.`, "vbuckets"];
  if (states.dead) yield ["note", `${number(states.dead)} vBuckets are dead here.`, "vbuckets"];
}

function tile(title, value, more, panel) {
  return make("a", { class: "tile", href: `#panel-${panel}` }, make("span", {}, title), make("b", {}, value),
    make("small", {}, more));
}

function tiles() {
  const { node, memory, queue, streams, replication } = newest;
  const rate = (name) => histories.get(`operations.${name}`)?.at(-1) ?? 0;
  const busy = ["gets", "sets", "deletes", "counts", "touches", "versions"];
  const behind = Math.max(0, ...streams.map((each) => each.seconds));
  const sum = (name) => replication.reduce((all, each) => all + each[name], 0);
  return [
    tile("operations", `${number(busy.reduce((all, name) => all + rate(name), 0))}/s`,
      `${number(rate("gets"))} gets, ${number(rate("sets"))} sets`, "operations"),
    tile("documents", number(node.items), `${number(node.connections)} connections`, "vbuckets"),
    tile("memory", bytes(memory.used), `of ${bytes(memory.quota)}`, "memory"),
    tile("not on disk", number(queue.waiting), `file ${bytes(queue.disk_file_bytes)}`, "queue"),
    tile("consumers", number(streams.length),
      behind ? `furthest behind: ${span(behind)}` : "none is behind", "streams"),
    tile("follows", replication.length ? `${number(sum("streaming"))} of ${number(sum("vbuckets"))}` : "nobody",
      !replication.length ? "this node has no source"
        : sum("streaming") < sum("vbuckets") ? "vBuckets have streams"
          : `vBuckets, ${number(sum("lag_items"))} changes behind`, "replication"),
  ];
}

function summarize() {
  if (!Object.keys(PANELS).every((name) => name in newest)) return;
  const found = [...problems()];
  const wrong = found.filter(([how]) => how !== "note").length;
  const fresh = make("div", { id: "summary", "aria-live": "polite" });
  if (lostAt) {
    const text = `The node has not been heard since ${lostAt.toLocaleTimeString()}: all this is from before.`;
    fresh.append(make("p", { class: "state bad" }, text));
  }
  if (!wrong && !lostAt) fresh.append(make("p", { class: "state good" }, "All is well."));
  for (const [how, text, panel] of found) {
    fresh.append(make("p", { class: `state ${how}` }, make("a", { href: `#panel-${panel}` }, text)));
  }
  fresh.append(make("div", { class: "tiles" }, ...tiles()));
  morph(document.getElementById("summary"), fresh);
  document.body.classList.toggle("stale", lostAt !== null);
  document.title = `${lostAt ? "(lost) " : wrong ? `(${wrong}) ` : ""}uprmc ${newest.node.listeners.memcached ?? ""}`;
}

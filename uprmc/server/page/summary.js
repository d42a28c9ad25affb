// What an operator wants to know first: what is wrong, as the node says it, and a few numbers.
"use strict";

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
  if (!["health", ...Object.keys(PANELS)].every((name) => name in newest)) return;
  const wrong = newest.health.filter((each) => each.how !== "note").length;
  const fresh = make("div", { id: "summary", "aria-live": "polite" });
  if (lostAt) {
    const text = `The node has not been heard since ${lostAt.toLocaleTimeString()}: all this is from before.`;
    fresh.append(make("p", { class: "state bad" }, text));
  }
  if (!wrong && !lostAt) fresh.append(make("p", { class: "state good" }, "All is well."));
  for (const { how, what, since, panel, "do": todo } of newest.health) {
    fresh.append(make("p", { class: `state ${how}` }, make("a", { href: `#panel-${panel}` }, what), " ",
      make("small", {}, `Since ${new Date(since * 1000).toLocaleString()}; ${todo}.`)));
  }
  fresh.append(make("div", { class: "tiles" }, ...tiles()));
  morph(document.getElementById("summary"), fresh);
  document.body.classList.toggle("stale", lostAt !== null);
  document.title = `${lostAt ? "(lost) " : wrong ? `(${wrong}) ` : ""}uprmc ${newest.node.listeners.memcached ?? ""}`;
}

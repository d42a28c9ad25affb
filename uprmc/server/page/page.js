// The page of a node: it reads samples from /live and gives each panel what has changed.
"use strict";

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
let lostAt = null; // since when the node says nothing

function show(name, data, seconds) {
  const [, render, , keeps] = PANELS[name];
  const section = sectionOf(name);
  if (keeps) return render(section, data, seconds);
  const fresh = section.cloneNode(false);
  fresh.append(section.firstChild.cloneNode(true));
  fresh.classList.toggle("idle", render(fresh, data, seconds) === true);
  morph(section, fresh);
}

function take(sample) {
  const now = performance.now() / 1000;
  const seconds = lastAt ? now - lastAt : 0;
  lastAt = now;
  Object.assign(newest, sample);
  for (const name of sample.gone ?? []) vbuckets.delete(name);
  for (const name of Object.keys(PANELS)) {
    if (!(name in sample) && !(COUNTING.includes(name) && name in newest)) continue;
    show(name, sample[name] ?? newest[name], seconds);
  }
  summarize();
}

function contact(state, text) {
  const place = document.getElementById("contact");
  if (place.dataset.state === state) return;
  place.dataset.state = state;
  place.textContent = text;
}

// A browser opens six connections to one address, for all its tabs together. So a tab that nobody
// sees gives its own up, and costs the node nothing.
let source = null;

function listen() {
  source = new EventSource("live");
  source.onmessage = (event) => {
    lostAt = null;
    contact("live", "live");
    take(JSON.parse(event.data));
  };
  source.onerror = () => {
    lastAt = 0;
    lostAt ??= new Date();
    summarize();
    contact("lost", source.readyState === EventSource.CLOSED
      ? "the node refuses this page: load it again" : "connection lost, trying again");
  };
}

function rest() {
  source?.close();
  source = null;
  lastAt = 0;
  contact("waiting", "waits until it is seen");
}

function look() {
  if (document.hidden) rest();
  else if (!source) listen();
}

document.addEventListener("visibilitychange", look);
look();

// What stands between the functions of a design and the program that runs them (see child.py).
//
// It is evaluated once in a new context and gives a function that takes the configuration. Functions
// of designs share its realm, so it takes what it needs before they run, freezes what they could
// change for one another, and touches no prototype of theirs afterwards.
(function () {
  "use strict";
  const { parse, stringify } = JSON;
  const evaluate = eval;
  const { now } = Date;
  const { defineProperty, freeze, getOwnPropertyDescriptor, getPrototypeOf } = Object;
  const { deleteProperty, ownKeys } = Reflect;
  const GlobalTypeError = TypeError;
  const LOG_CHARACTERS = 500;

  // ---- helpers that Couchbase and CouchDB give to their functions

  function sum(values) {
    let total = 0;
    for (let i = 0; i < values.length; i++) total += values[i];
    return total;
  }

  function dateToArray(date) {
    const when = typeof date === "string" || typeof date === "number" ? new Date(date) : date;
    if (!when || isNaN(when.getTime())) throw new GlobalTypeError("dateToArray: no date");
    return [
      when.getUTCFullYear(), when.getUTCMonth() + 1, when.getUTCDate(),
      when.getUTCHours(), when.getUTCMinutes(), when.getUTCSeconds(),
    ];
  }

  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

  function decodeBase64(text) {
    if (typeof text !== "string") throw new GlobalTypeError("decodeBase64: no string");
    const bytes = [];
    let bits = 0, held = 0;
    for (let i = 0; i < text.length && text[i] !== "="; i++) {
      const digit = DIGITS.indexOf(text[i]);
      if (digit < 0) throw new GlobalTypeError("decodeBase64: no base64");
      bits = (bits << 6) | digit;
      held += 6;
      if (held >= 8) {
        held -= 8;
        bytes.push((bits >> held) & 255);
        bits &= (1 << held) - 1;
      }
    }
    return bytes;
  }

  const { isArray } = Array;

  function toJSON(value) {
    return stringify(value);
  }

  // Lines of the present batch: the document's id and the text, as many and as long as is allowed.
  let logged = "";
  let lines = 0;
  let present = "";

  function log(message) {
    if (limits === null || lines >= limits.log) return;
    let text = typeof message === "string" ? message : stringify(message);
    if (text === undefined) text = "undefined";
    if (text.length > LOG_CHARACTERS) text = text.slice(0, LOG_CHARACTERS) + "...";
    logged += (lines++ === 0 ? "[" : ",[") + stringify(present) + "," + stringify(text) + "]";
  }

  // ---- one document in one map

  let active = false; // whether a map runs
  let failed = ""; // why its rows are dropped
  let rows = "";
  let count = 0;
  let size = 0;
  let limits = null;

  function fail(reason) {
    failed = reason;
    rows = "";
  }

  function emit(key, value) {
    if (!active) throw new GlobalTypeError("emit is called outside of a map");
    if (failed !== "") return;
    let keyText = stringify(key);
    if (keyText === undefined) keyText = "null";
    if (keyText.length > limits.key) {
      fail("it emitted a key of " + keyText.length + " bytes; the most are " + limits.key);
      return;
    }
    let valueText = stringify(value);
    if (valueText === undefined) valueText = "null";
    if (valueText.length > limits.value) {
      fail("it emitted a value of " + valueText.length + " bytes; the most are " + limits.value);
      return;
    }
    if (!active || failed !== "") return; // a toJSON may have come this way before
    if (count >= limits.rows) {
      fail("it emitted more than " + limits.rows + " rows");
      return;
    }
    size += keyText.length + valueText.length;
    if (size > limits.document) {
      fail("its rows have more than " + limits.document + " bytes");
      return;
    }
    rows += (count++ === 0 ? "[" : ",[") + keyText + "," + valueText + "]";
  }

  // Whatever was thrown, as a short text; asking it may run code of the function's again.
  function describe(thrown) {
    try {
      const text = typeof thrown === "object" && thrown !== null && "message" in thrown
        ? thrown.name + ": " + thrown.message
        : "" + thrown;
      return text.length > 500 ? text.slice(0, 500) + "..." : text || "it threw an empty text";
    } catch {
      return "it threw what has no text";
    }
  }

  function run(map, document, meta) {
    rows = "";
    count = size = 0;
    failed = "";
    active = true;
    try {
      map(document, meta);
    } catch (thrown) {
      fail("it threw " + describe(thrown));
    }
    active = false;
    return failed === "" ? "[" + rows + "]" : stringify(failed);
  }

  // ---- batches

  let maps = null;
  let reduces = null;
  let answer = "";
  let running = 0; // which map runs
  let started = 0; // when the document began that is being mapped

  function clean() {
    for (const name in globalThis) deleteProperty(globalThis, name);
  }

  function mapOne(pair) {
    const document = pair[0], meta = pair[1];
    running = 0;
    if (maps.length === 1) return "[" + run(maps[0], document, meta) + "]";
    const text = stringify(pair); // each map gets a copy that no other one has changed
    let line = "[" + run(maps[0], document, meta);
    for (let i = 1; i < maps.length; i++) {
      running = i;
      const again = parse(text);
      line += "," + run(maps[i], again[0], again[1]);
    }
    return line + "]";
  }

  // Gives a line for each document, and fewer lines than documents where they become too large;
  // before them one of what was logged, if anything was.
  function mapBatch(text) {
    answer = logged = "";
    lines = 0;
    started = now();
    const pairs = parse(text);
    for (let i = 0; i < pairs.length && answer.length < limits.answer; i++) {
      present = pairs[i][1].id;
      const line = mapOne(pairs[i]);
      pairs[i] = null;
      answer += i === 0 ? line : ",\n" + line;
      started = now();
    }
    clean();
    return lines === 0 ? answer : "l[" + logged + "]\n" + answer;
  }

  // After mapBatch was stopped: for how long the next document ran, in which map, and what was done.
  function progress() {
    active = false;
    return (now() - started) + " " + running + "\n" + answer;
  }

  function reduce(text) {
    const [place, keys, values, again] = parse(text);
    let made;
    try {
      made = stringify(reduces[place](keys, values, again));
    } catch (thrown) {
      return "!it threw " + describe(thrown);
    }
    clean();
    if (made === undefined) made = "null";
    if (made.length > limits.reduction)
      return "!a reduction has " + made.length + " bytes; the most are " + limits.reduction;
    return "=" + made;
  }

  // ---- the realm

  // Freezing makes an inherited name read-only, so `object.toString = ...` would fail in silence.
  // A setter that defines the name on the object itself keeps such assignments as they were.
  function keepAssignable(prototype) {
    for (const name of ownKeys(prototype)) {
      const property = getOwnPropertyDescriptor(prototype, name);
      if (!property.configurable || !("value" in property)) continue;
      const { value } = property;
      defineProperty(prototype, name, {
        get() { return value; },
        set(other) {
          if (this === prototype) throw new GlobalTypeError("the prototypes are frozen");
          defineProperty(this, name,
            { value: other, writable: true, enumerable: true, configurable: true });
        },
      });
    }
  }

  function freezeAll(roots) {
    const seen = new Set([globalThis]);
    const todo = roots;
    while (todo.length) {
      const each = todo.pop();
      if (each === null || (typeof each !== "object" && typeof each !== "function")) continue;
      if (seen.has(each)) continue;
      seen.add(each);
      freeze(each);
      todo.push(getPrototypeOf(each));
      for (const name of ownKeys(each)) {
        const property = getOwnPropertyDescriptor(each, name);
        todo.push(property.value, property.get, property.set);
      }
    }
  }

  function close() {
    const unwanted = ["SharedArrayBuffer", "Atomics", "WebAssembly", "setTimeout", "clearTimeout",
      "__timer_manager", "FinalizationRegistry", "WeakRef"];
    for (const name of unwanted)
      if (!deleteProperty(globalThis, name)) globalThis[name] = undefined;
    for (const [name, value] of Object.entries(
      { emit, sum, dateToArray, decodeBase64, isArray, toJSON, log }))
      defineProperty(globalThis, name, { value, enumerable: false, configurable: false });
    for (const each of [Object.prototype, Function.prototype, Error.prototype, TypeError.prototype,
      RangeError.prototype]) keepAssignable(each);
    const hidden = [function* () {}, async function () {}, async function* () {}, [][Symbol.iterator](),
      ""[Symbol.iterator](), new Map().entries(), new Set().entries(), /a/[Symbol.matchAll]("a"),
      (function* () {})(), (async function* () {})(), Uint8Array];
    const roots = [...hidden];
    for (const name of ownKeys(globalThis)) {
      const property = getOwnPropertyDescriptor(globalThis, name);
      roots.push(property.value);
      if (name === "globalThis") continue;
      const fixed = "value" in property ? { writable: false } : {};
      const hidden = property.configurable ? { enumerable: false, configurable: false } : {};
      defineProperty(globalThis, name, { ...fixed, ...hidden });
    }
    freezeAll(roots);
  }

  function compile(source) {
    const made = evaluate("(" + source + "\n)");
    if (typeof made !== "function") throw new GlobalTypeError("it is no function");
    return made;
  }

  close();
  return freeze({
    start(text) {
      const config = parse(text);
      limits = config.limits;
      maps = config.maps.map(compile);
      reduces = config.reduces.map(compile);
      clean();
      return "started";
    },
    mapBatch, reduce, progress,
  });
})()

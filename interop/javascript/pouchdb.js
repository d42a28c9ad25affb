// PouchDB driven by lines of JSON: one request on standard input, one answer on standard output.
//
//   {"op": "open", "adapter": "memory" | "leveldb", "path": NAME}; the one before is destroyed
//   {"op": "load", "docs": [{"_id": ..., ...}, ...]}        -> {"ok": true}
//   {"op": "generate", "first": N, "count": N, "source": "function (n) { return {...}; }"}
//   {"op": "remove", "ids": [...]}
//   {"op": "design", "name": ..., "views": {...}}           -> {"ok": true}
//   {"op": "query", "view": "NAME/VIEW", "options": {...}}  -> {"rows": [...], "ms": N}
//   {"op": "repeat", "view": ..., "options": {...}, "times": N} -> {"ms": [...]}
"use strict";

const readline = require("readline");
const PouchDB = require("pouchdb");
PouchDB.plugin(require("pouchdb-adapter-memory"));

let database = null;

async function put(documents) {
  const failed = (await database.bulkDocs(documents)).filter((each) => each.error);
  if (failed.length) throw new Error(JSON.stringify(failed[0]));
  return { ok: true };
}

async function timed(work) {
  const began = process.hrtime.bigint();
  const answer = await work();
  return [answer, Number(process.hrtime.bigint() - began) / 1e6];
}

const operations = {
  async open({ adapter, path }) {
    if (database) await database.destroy();
    database = new PouchDB(path, { adapter });
    return { ok: true };
  },
  async load({ docs }) {
    return put(docs);
  },
  async generate({ first, count, source }) {
    const made = (0, eval)(`(${source})`);
    for (let from = first; from < first + count; from += 1000) {
      const documents = [];
      for (let n = from; n < Math.min(from + 1000, first + count); n++) documents.push(made(n));
      await put(documents);
    }
    return { ok: true };
  },
  async remove({ ids }) {
    for (const id of ids) await database.remove(await database.get(id));
    return { ok: true };
  },
  async design({ name, views }) {
    await database.put({ _id: `_design/${name}`, views });
    return { ok: true };
  },
  async query({ view, options }) {
    const [answer, ms] = await timed(() => database.query(view, options));
    return { rows: answer.rows, total_rows: answer.total_rows, ms };
  },
  async repeat({ view, options, times }) {
    const took = [];
    for (let n = 0; n < times; n++) took.push((await timed(() => database.query(view, options)))[1]);
    return { ms: took };
  },
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    let answer;
    try {
      answer = await operations[request.op](request);
    } catch (error) {
      answer = { error: String(error.message || error), status: error.status };
    }
    process.stdout.write(JSON.stringify(answer) + "\n");
  }
  if (database) await database.close();
}

main();

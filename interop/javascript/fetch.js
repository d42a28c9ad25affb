// What a page of another origin gets: one `fetch` with the URL and the origin of the command line.
// Node's fetch is the browser's but for CORS, so the rule of the Fetch standard stands here: a page
// may read an answer only if Access-Control-Allow-Origin is its origin, or a star.
"use strict";

async function main() {
  const [url, origin] = process.argv.slice(2);
  const answer = await fetch(url, { headers: { Origin: origin } });
  const allowed = answer.headers.get("access-control-allow-origin");
  const readable = allowed === "*" || allowed === origin;
  const body = readable ? await answer.json() : null;
  process.stdout.write(JSON.stringify({ status: answer.status, readable, body }));
}

main();

// node-postgres with its cursor, stream and COPY companions. Prints what each step saw under a line `== step`.
"use strict";
const { Client, Pool } = require("pg");
const Cursor = require("pg-cursor");
const QueryStream = require("pg-query-stream");
const { from: copyFrom, to: copyTo } = require("pg-copy-streams");
const { pipeline } = require("node:stream/promises");
const { Readable } = require("node:stream");

process.noDeprecation = true; // its text names the process
const shown = (value) => console.log(JSON.stringify(value));
const told = (e) => ({
  code: e.code, message: e.message, severity: e.severity, detail: e.detail, hint: e.hint, position: e.position,
  table: e.table, constraint: e.constraint, schema: e.schema, column: e.column, routine: e.routine, line: e.line,
});

const steps = {
  async "simple query"(client) {
    shown((await client.query("SELECT 1 AS a, 'ü' AS b, NULL AS c")).rows);
    shown((await client.query("CREATE TABLE item (id serial PRIMARY KEY, name text UNIQUE, price numeric, at timestamptz, tags text[], body jsonb)")).command);
  },
  async "several statements in one string"(client) {
    const results = await client.query("INSERT INTO item (name) VALUES ('a'), ('b'); SELECT count(*) FROM item; SELECT 1 WHERE false");
    shown(results.map((r) => [r.command, r.rowCount, r.rows]));
  },
  async "parameters of many types"(client) {
    const result = await client.query(
      "INSERT INTO item (name, price, at, tags, body) VALUES ($1, $2, $3, $4, $5) RETURNING *",
      ["c", "12.50", new Date(0), ["x", "y'", null], { k: [1, 2] }]);
    shown(result.rows);
    shown(result.fields.map((f) => [f.name, f.dataTypeID, f.dataTypeSize, f.columnID, f.format]));
  },
  async "named statement, run again"(client) {
    for (const n of [1, 2, 3]) {
      shown((await client.query({ name: "by-id", text: "SELECT name FROM item WHERE id = $1", values: [n], rowMode: "array" })).rows);
    }
  },
  async "binary results"(client) {
    shown((await client.query({ text: "SELECT 7::int4 AS a, 1.5::float8 AS b, true AS c", values: [], binary: true })).rows);
  },
  async "unique violation"(client) {
    await client.query("INSERT INTO item (name) VALUES ($1)", ["a"]).catch((e) => shown(told(e)));
    shown((await client.query("SELECT 1 AS still")).rows);
  },
  async "errors of syntax and names"(client) {
    await client.query("SELEC 1").catch((e) => shown(told(e)));
    await client.query("SELECT $1::int +", [1]).catch((e) => shown(told(e)));
    await client.query("SELECT * FROM no_such_table WHERE a = $1", [1]).catch((e) => shown(told(e)));
    await client.query("SELECT nam FROM item").catch((e) => shown(told(e)));
  },
  async "failed transaction"(client) {
    await client.query("BEGIN");
    await client.query("SELECT 1/0").catch((e) => shown(told(e)));
    await client.query("SELECT 1").catch((e) => shown(told(e)));
    shown((await client.query("COMMIT")).command);
  },
  async "empty query"(client) {
    shown((await client.query("")).rows);
    shown((await client.query({ text: "-- nothing", values: [] })).rows);
  },
  async "notices"(client) {
    const seen = [];
    const keep = (n) => seen.push([n.severity, n.code, n.message]);
    client.on("notice", keep);
    await client.query("DROP TABLE IF EXISTS never_there");
    await client.query("CREATE TABLE IF NOT EXISTS item (id int)");
    client.off("notice", keep);
    shown(seen);
  },
  async "listen and notify"(client, connect) {
    const other = await connect();
    const heard = new Promise((resolve) => client.once("notification", resolve));
    await client.query('LISTEN "A channel"');
    await other.query(`NOTIFY "A channel", 'payload'`);
    const message = await heard;
    shown([message.channel, message.payload, message.processId === other.processID]);
    await client.query('UNLISTEN "A channel"');
    await other.end();
  },
  async "cursor"(client) {
    const cursor = client.query(new Cursor("SELECT i FROM generate_series(1, $1) AS i", [25]));
    for (const count of [10, 10, 10, 10]) shown((await cursor.read(count)).map((r) => r.i));
    await cursor.close();
    const left = client.query(new Cursor("SELECT i FROM generate_series(1, 1000) AS i"));
    shown((await left.read(1)).length);
    await left.close();
    const failing = client.query(new Cursor("SELECT 10 / (5 - i) AS q FROM generate_series(1, 9) AS i"));
    shown(await failing.read(3));
    await failing.read(9).catch((e) => shown(told(e)));
    await failing.close().catch((e) => shown(told(e)));
    shown((await client.query("SELECT 1 AS after")).rows);
  },
  async "query stream"(client) {
    let sum = 0, count = 0;
    for await (const row of client.query(new QueryStream("SELECT i FROM generate_series(1, $1) AS i", [5000], { batchSize: 100 }))) {
      sum += row.i; count += 1;
    }
    shown([count, sum]);
    for await (const row of client.query(new QueryStream("SELECT i FROM generate_series(1, 5000) AS i", [], { batchSize: 10 }))) {
      if (row.i === 25) break;
    }
    shown((await client.query("SELECT 2 AS after")).rows);
  },
  async "copy"(client) {
    await client.query("CREATE TABLE copied (id int, body text)");
    const lines = Array.from({ length: 20000 }, (_, n) => `${n}\tline ${n} ${"x".repeat(n % 90)}\n`);
    await pipeline(Readable.from(lines), client.query(copyFrom("COPY copied FROM STDIN")));
    shown((await client.query("SELECT count(*), sum(length(body)), md5(string_agg(body, '' ORDER BY id)) FROM copied")).rows);
    let bytes = 0;
    for await (const chunk of client.query(copyTo("COPY (SELECT * FROM copied ORDER BY id) TO STDOUT (FORMAT csv)"))) bytes += chunk.length;
    shown(bytes);
    await pipeline(Readable.from(["1\ta\n", "not a number\tb\n"]), client.query(copyFrom("COPY copied FROM STDIN"))).catch((e) => shown(told(e)));
    shown((await client.query("SELECT count(*) FROM copied")).rows);
  },
  async "cancel"(client, connect) {
    const other = await connect();
    const slept = client.query("SELECT pg_sleep(30)").catch((e) => e.code);
    await new Promise((resolve) => setTimeout(resolve, 300));
    shown((await other.query("SELECT pg_cancel_backend($1)", [client.processID])).rows);
    shown(await slept);
    shown((await client.query("SELECT 3 AS after")).rows);
    await other.end();
  },
  async "terminated"(client, connect) {
    const other = await connect();
    const errors = [];
    const ended = new Promise((resolve) => other.on("error", (e) => { errors.push([e.code, e.message]); }).once("end", resolve));
    await client.query("SELECT pg_terminate_backend($1)", [other.processID]);
    await ended;
    shown(errors);
  },
  async "pool"() {
    const pool = new Pool({ max: 4 });
    const rows = await Promise.all(Array.from({ length: 40 }, (_, n) => pool.query("SELECT $1::int * 2 AS d", [n])));
    shown(rows.map((r) => r.rows[0].d));
    await pool.end();
  },
  async "queued queries"(client) {
    shown(await Promise.all([1, 2, 3, 4].map(async (n) => (n === 3
      ? client.query("SELECT 1 / $1::int", [0]).catch((e) => e.code)
      : (await client.query("SELECT $1::text AS v", [`v${n}`])).rows[0].v))));
  },
  async "large values"(client) {
    const big = "ä".repeat(3 << 20);
    const { rows } = await client.query("SELECT $1::text AS v, md5($1::text) AS m", [big]);
    shown([rows[0].v === big, rows[0].m]);
    const blob = Buffer.alloc(1 << 20, 0xa5);
    shown((await client.query("SELECT length($1::bytea) AS n, $1::bytea AS b", [blob])).rows[0].b.equals(blob));
  },
  async "two transactions that deadlock"(client, connect) {
    const other = await connect();
    await client.query("BEGIN; UPDATE item SET price = 1 WHERE id = 1");
    await other.query("BEGIN; UPDATE item SET price = 1 WHERE id = 2");
    const results = await Promise.allSettled([
      client.query("UPDATE item SET price = 2 WHERE id = 2"), other.query("UPDATE item SET price = 2 WHERE id = 1")]);
    shown(results.map((r) => (r.status === "rejected" ? r.reason.code : "done")).sort());
    await client.query("ROLLBACK");
    await other.query("ROLLBACK");
    await other.end();
  },
};

async function main() {
  const connect = async () => {
    const client = new Client();
    await client.connect();
    return client;
  };
  const client = await connect();
  for (const [name, step] of Object.entries(steps)) {
    console.log(`== ${name}`);
    await step(client, connect);
  }
  await client.end();
}

main().catch((error) => { console.error(error); process.exit(1); });

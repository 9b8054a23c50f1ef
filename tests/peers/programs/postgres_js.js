// postgres.js: pipelined queries, cursors, COPY, transactions. Prints what each step saw under `== step`.
"use strict";
const postgres = require("postgres");
const { pipeline } = require("node:stream/promises");
const { Readable } = require("node:stream");

const shown = (value) => console.log(JSON.stringify(value));
const told = (e) => ({
  code: e.code, message: e.message, severity: e.severity, detail: e.detail, hint: e.hint, position: e.position,
  table: e.table_name, constraint: e.constraint_name, routine: e.routine, line: e.line,
});

const steps = {
  async "tagged queries"(sql) {
    shown(await sql`SELECT ${1}::int AS a, ${"ü"} AS b, ${null}::text AS c, ${[1, 2]}::int[] AS d, ${sql.json({ k: 1 })}::jsonb AS e`);
    shown((await sql`CREATE TABLE account (id int PRIMARY KEY, name text, balance int CHECK (balance >= 0))`).command);
    shown(await sql`INSERT INTO account ${sql([{ id: 1, name: "a", balance: 10 }, { id: 2, name: "b", balance: 20 }])} RETURNING *`);
  },
  async "pipelined"(sql) {
    shown(await Promise.all(Array.from({ length: 50 }, (_, n) => sql`SELECT ${n}::int + 1 AS v`.then((r) => r[0].v))));
    const mixed = await Promise.allSettled([sql`SELECT 1 AS a`, sql`SELECT 1 / ${0}::int`, sql`SELECT ${"x"}::text::int`, sql`SELECT 2 AS a`]);
    mixed.forEach((r) => shown(r.status === "fulfilled" ? r.value : told(r.reason)));
  },
  async "unprepared and simple"(sql) {
    shown(await sql.unsafe("SELECT 1 AS a; SELECT 2 AS b").then((all) => all.map((r) => [...r])));
    shown(await sql.unsafe("SELECT $1::int AS a", [5]));
    shown(await sql.unsafe("SELECT $1::int AS a", [6], { prepare: true }));
    shown(await sql`SELECT 7 AS a`.simple());
  },
  async "errors of syntax and names"(sql) {
    await sql.unsafe("SELEC").catch((e) => shown(told(e)));
    await sql`SELECT * FROM nowhere WHERE a = ${1}`.catch((e) => shown(told(e)));
    await sql`SELECT nam FROM account`.catch((e) => shown(told(e)));
  },
  async "described"(sql) {
    const statement = await sql`SELECT id, name FROM account WHERE id = ${1}`.describe();
    shown([statement.types, statement.columns.map((c) => [c.name, c.type, c.number])]);
  },
  async "values and raw"(sql) {
    shown(await sql`SELECT 1 AS a, 'x' AS b`.values());
    shown((await sql`SELECT 1 AS a, 'x' AS b`.raw()).map((r) => r.map(String)));
  },
  async "cursor"(sql) {
    for await (const rows of sql`SELECT i FROM generate_series(1, 25) AS i`.cursor(10)) shown(rows.map((r) => r.i));
    await sql`SELECT i FROM generate_series(1, 1000) AS i`.cursor(5, (rows) => { shown(rows.length); return sql.CLOSE; });
    const ran = []; await sql`SELECT i FROM generate_series(1, 5) AS i`.forEach((r) => { ran.push(r.i); }); shown(ran);
  },
  async "transactions"(sql) {
    shown(await sql.begin(async (tx) => {
      await tx`UPDATE account SET balance = balance - 5 WHERE id = 1`;
      const failed = await tx.savepoint(async (sp) => { await sp`UPDATE account SET balance = -1 WHERE id = 2`; }).catch((e) => e.code);
      return [failed, await tx`SELECT * FROM account ORDER BY id`];
    }));
    await sql.begin(async (tx) => { await tx`DELETE FROM account WHERE id = 1`; throw new Error("no"); }).catch((e) => shown(e.message));
    await sql.begin("read only", async (tx) => { await tx`DELETE FROM account WHERE id = 1`; }).catch((e) => shown(told(e)));
    await sql.begin(async (tx) => Promise.all([tx`SELECT 1 / 0`, tx`SELECT 2`])).catch((e) => shown(told(e)));
    shown(await sql`SELECT count(*)::int FROM account`);
  },
  async "constraint"(sql) {
    await sql`INSERT INTO account VALUES (${1}, 'c', 0)`.catch((e) => shown(told(e)));
    await sql`UPDATE account SET balance = ${-3} WHERE id = ${1}`.catch((e) => shown(told(e)));
  },
  async "copy"(sql) {
    const lines = Array.from({ length: 5000 }, (_, n) => `${n + 10}\tname ${n}\t${n}\n`);
    await pipeline(Readable.from(lines), await sql`COPY account FROM STDIN`.writable());
    shown(await sql`SELECT count(*)::int, sum(balance)::int FROM account`);
    let bytes = 0;
    for await (const chunk of await sql`COPY account TO STDOUT`.readable()) bytes += chunk.length;
    shown(bytes);
  },
  async "listen and notify"(sql) {
    const heard = new Promise((resolve) => { sql.listen("news", resolve).then(() => sql.notify("news", "payload")); });
    shown(await heard);
  },
  async "cancel"() {
    // With connections of its own: the driver does not use one again whose query was cancelled.
    const other = postgres({ max: 1 });
    const query = other`SELECT pg_sleep(30)`;
    setTimeout(() => query.cancel(), 400);
    await query.catch((e) => shown([e.code, e.message]));
    await other.end({ timeout: 1 });
  },
  async "large value"(sql) {
    const big = "z".repeat(200_000);
    const [row] = await sql`SELECT ${big}::text AS v, length(${big}::text) AS n`;
    shown([row.v === big, row.n]);
  },
  async "reserved"() {
    const other = postgres({ max: 1 });
    const own = await other.reserve();
    await own`CREATE TEMP TABLE mine (a int)`;
    await own`INSERT INTO mine VALUES (1), (2)`;
    shown(await own`SELECT sum(a)::int FROM mine`);
    own.release();
    await other.end({ timeout: 1 });
  },
};

async function main() {
  const sql = postgres({ max: 3, onnotice: (n) => shown(["notice", n.severity, n.code, n.message]), idle_timeout: 5 });
  for (const [name, step] of Object.entries(steps)) {
    console.log(`== ${name}`);
    await step(sql);
  }
  await sql.end({ timeout: 5 });
}

main().catch((error) => { console.error(error); process.exit(1); });

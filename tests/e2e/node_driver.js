// Scenarios of node-postgres, run by test_node.py: connection parameters as JSON on the command line, then the names
// of the scenarios to run (all by default); what each saw as JSON on standard output.
const { Client, Pool } = require("pg");

const parameters = JSON.parse(process.argv[2]);
const only = process.argv.slice(3);
const REFUSED = "DELETE FROM orders";

async function told(promise) {
  try {
    const result = await promise;
    return { ran: result.rows };
  } catch (error) {
    const { name, severity, code, detail, hint, routine } = error;
    return { name, severity, code, detail, hint, routine };
  }
}

async function connected(scenario) {
  const client = new Client(parameters);
  await client.connect();
  try {
    return await scenario(client);
  } finally {
    await client.end();
  }
}

const scenarios = {
  rows: (client) => client.query("SELECT id, name, tags, price FROM products ORDER BY id LIMIT 5").then((r) => r.rows),

  parameterised: (client) =>
    client
      .query("SELECT $1::int + 1 AS n, $2::text AS t, $3::bool AS b, $4::int[] AS a", [41, "grüße 💡", true, [1, 2]])
      .then((r) => r.rows),

  arrays: (client) =>
    client.query({ text: "SELECT id, city FROM customers WHERE id < $1 ORDER BY id", values: [4], rowMode: "array" })
      .then((r) => r.rows),

  named: async (client) => {
    const found = [];
    for (let n = 1; n <= 5; n += 1) {
      const statement = { name: "order", text: "SELECT id FROM orders WHERE id = $1", values: [n] };
      found.push((await client.query(statement)).rows[0].id);
    }
    return found;
  },

  refusals: async (client) => ({
    simple: await told(client.query(REFUSED)),
    extended: await told(client.query("DELETE FROM orders WHERE $1 = 1 OR true", [1])),
    named: await told(client.query({ name: "gone", text: REFUSED })),
    again: await told(client.query({ name: "gone", text: REFUSED })),
    after: await told(client.query("SELECT 1 AS one")),
  }),

  transaction: async (client) => {
    await client.query("BEGIN");
    await client.query("UPDATE customers SET notes = 'node' WHERE id = $1", [1]);
    const refused = await told(client.query(REFUSED));
    const aborted = await told(client.query("SELECT 1"));
    await client.query("ROLLBACK");
    const { rows } = await client.query("SELECT count(*)::int AS n FROM customers WHERE notes = 'node'");
    return { refused: refused.code, aborted: aborted.code, left: rows[0].n };
  },

  queued: (client) =>
    Promise.all([...Array(50).keys()].map((n) => client.query("SELECT $1::int AS n", [n]).then((r) => r.rows[0].n))),

  "queued with a refusal": (client) =>
    Promise.all(
      ["SELECT 1 AS one", REFUSED, "SELECT 1 AS one"].map((text) =>
        told(client.query(text)).then((seen) => seen.code ?? seen.ran[0].one)),
    ),

  notice: async (client) => {
    const heard = [];
    client.on("notice", (notice) => heard.push([notice.severity, notice.code, notice.routine]));
    await client.query("SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer_id");
    return heard;
  },

  "cursor-like": async (client) => {
    await client.query("BEGIN");
    await client.query("DECLARE c CURSOR FOR SELECT id FROM orders ORDER BY id");
    const sizes = [];
    for (const n of [7, 7, 3000]) {
      sizes.push((await client.query(`FETCH ${n} FROM c`)).rows.length);
    }
    await client.query("COMMIT");
    return sizes;
  },
};

async function pool() {
  const several = new Pool({ ...parameters, max: 3 });
  try {
    const work = [...Array(40).keys()].map((n) =>
      n % 4 === 3
        ? told(several.query(REFUSED)).then((seen) => seen.code)
        : several.query("SELECT $1::int AS n", [n]).then((r) => r.rows[0].n));
    return await Promise.all(work);
  } finally {
    await several.end();
  }
}

async function main() {
  const all = { pool };
  for (const [name, scenario] of Object.entries(scenarios)) {
    all[name] = () => connected(scenario);
  }
  const seen = {};
  for (const name of only.length ? only : Object.keys(all)) {
    seen[name] = await all[name]();
  }
  process.stdout.write(JSON.stringify(seen));
}

main();

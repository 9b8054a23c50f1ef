// pgx v4: statement caches, batches, binary COPY, cancel, simple protocol. Prints what each step saw under `== step`.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgconn/stmtcache"
	"github.com/jackc/pgx/v4"
)

var background = context.Background()

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func told(err error) {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		fmt.Println(e.Code, e.Severity, e.Message, e.Detail, e.Hint, e.Position, e.TableName, e.ConstraintName, e.Routine)
		return
	}
	fmt.Println(err)
}

func show(c *pgx.Conn, query string, arguments ...interface{}) {
	rows, err := c.Query(background, query, arguments...)
	if err != nil {
		told(err)
		return
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		must(err)
		fmt.Println(values...)
	}
	if err := rows.Err(); err != nil {
		told(err)
		return
	}
	fmt.Println(rows.CommandTag())
}

func main() {
	for _, cache := range []string{"prepare", "describe", "none", "simple"} {
		config, err := pgx.ParseConfig("sslmode=disable")
		must(err)
		config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { fmt.Println("notice", n.Code, n.Message) }
		switch cache {
		case "describe":
			config.BuildStatementCache = func(c *pgconn.PgConn) stmtcache.Cache { return stmtcache.New(c, stmtcache.ModeDescribe, 64) }
		case "none":
			config.BuildStatementCache = nil
		case "simple":
			config.PreferSimpleProtocol = true
		}
		connection, err := pgx.ConnectConfig(background, config)
		must(err)
		run(connection, cache)
		must(connection.Close(background))
	}
}

func run(c *pgx.Conn, cache string) {
	step := func(name string) { fmt.Printf("== %s, cache: %s\n", name, cache) }
	step("statements")
	_, err := c.Exec(background, "DROP TABLE IF EXISTS gadget")
	must(err)
	_, err = c.Exec(background, "CREATE TABLE gadget (id int PRIMARY KEY, name text, price float8, tags text[], at timestamptz)")
	must(err)
	for n := 0; n < 7; n++ {
		show(c, "INSERT INTO gadget VALUES ($1, $2, $3, $4) RETURNING id, name, price", n, fmt.Sprint("g'", n), 1.5*float64(n), []string{"a", "b,c"})
		show(c, "SELECT name, tags FROM gadget WHERE id = $1", n)
	}
	must(c.Ping(background))
	show(c, "")

	step("errors of syntax and names")
	show(c, "SELEC 1")
	show(c, "SELECT nam FROM gadget WHERE id = $1", 1)
	show(c, "SELECT * FROM absent WHERE b = $1", 1)

	step("errors")
	show(c, "INSERT INTO gadget (id) VALUES ($1)", 1)
	show(c, "SELECT 10 / (3 - i) FROM generate_series(1, 5) AS i")

	step("schema change under a cached statement")
	show(c, "SELECT * FROM gadget WHERE id = $1", 1)
	_, err = c.Exec(background, "ALTER TABLE gadget ADD extra int DEFAULT 3")
	must(err)
	show(c, "SELECT * FROM gadget WHERE id = $1", 1)
	show(c, "SELECT * FROM gadget WHERE id = $1", 1)

	step("batch")
	batch := &pgx.Batch{}
	for n := 100; n < 140; n++ {
		batch.Queue("INSERT INTO gadget (id, name) VALUES ($1, $2)", n, "batched")
	}
	batch.Queue("SELECT count(*) FROM gadget")
	results := c.SendBatch(background, batch)
	for n := 0; n < 40; n++ {
		_, err := results.Exec()
		must(err)
	}
	var count int
	must(results.QueryRow().Scan(&count))
	fmt.Println(count)
	must(results.Close())
	failing := &pgx.Batch{}
	failing.Queue("INSERT INTO gadget (id) VALUES (200)")
	failing.Queue("INSERT INTO gadget (id) VALUES (200)")
	failing.Queue("SELECT 1")
	results = c.SendBatch(background, failing)
	for n := 0; n < 3; n++ {
		_, err := results.Exec()
		told(err)
	}
	told(results.Close())
	show(c, "SELECT count(*) FROM gadget")

	step("transactions")
	tx, err := c.Begin(background)
	must(err)
	nested, err := tx.Begin(background)
	must(err)
	_, err = nested.Exec(background, "SELECT 1 / 0")
	told(err)
	must(nested.Rollback(background))
	_, err = tx.Exec(background, "UPDATE gadget SET price = 0 WHERE id = 1")
	must(err)
	must(tx.Commit(background))
	tx, err = c.BeginTx(background, pgx.TxOptions{IsoLevel: pgx.Serializable, AccessMode: pgx.ReadOnly, DeferrableMode: pgx.Deferrable})
	must(err)
	_, err = tx.Exec(background, "DELETE FROM gadget WHERE id = 1")
	told(err)
	told(tx.Commit(background))

	step("copy")
	rows := make([][]interface{}, 0, 3000)
	for n := 1000; n < 4000; n++ {
		rows = append(rows, []interface{}{n, fmt.Sprint("copied ", n), float64(n), []string{"x"}})
	}
	copied, err := c.CopyFrom(background, pgx.Identifier{"gadget"}, []string{"id", "name", "price", "tags"}, pgx.CopyFromRows(rows))
	fmt.Println(copied, err)
	_, err = c.CopyFrom(background, pgx.Identifier{"gadget"}, []string{"id"}, pgx.CopyFromRows([][]interface{}{{5000}, {1000}}))
	told(err)
	var out bytes.Buffer
	tag, err := c.PgConn().CopyTo(background, &out, "COPY (SELECT id, name FROM gadget ORDER BY id) TO STDOUT")
	fmt.Println(tag, err, out.Len())
	tag, err = c.PgConn().CopyFrom(background, strings.NewReader("x\n"), "COPY gadget (id) FROM STDIN")
	told(err)

	step("wire")
	all, err := c.PgConn().Exec(background, "SELECT 1; SELECT 2, 3; UPDATE gadget SET price = 1 WHERE id = 1").ReadAll()
	must(err)
	for _, one := range all {
		fmt.Println(one.CommandTag, one.Rows)
	}
	statement, err := c.PgConn().Prepare(background, "mine", "SELECT $1::int4, $2::text", nil)
	must(err)
	fmt.Println(statement.ParamOIDs, len(statement.Fields))
	read := c.PgConn().ExecPrepared(background, "mine", [][]byte{[]byte("5"), nil}, nil, nil).Read()
	fmt.Println(read.Rows, read.Err)
	_, err = c.PgConn().Exec(background, "DEALLOCATE mine").ReadAll()
	must(err)
	told(c.PgConn().ExecPrepared(background, "mine", [][]byte{[]byte("5"), nil}, nil, nil).Read().Err)

	step("cancel")
	_, err = c.Exec(background, "SET statement_timeout = '300ms'")
	must(err)
	_, err = c.Exec(background, "SELECT pg_sleep(30)")
	told(err)
	_, err = c.Exec(background, "RESET statement_timeout")
	must(err)
	go func() { time.Sleep(400 * time.Millisecond); must(c.PgConn().CancelRequest(background)) }()
	_, err = c.Exec(background, "SELECT pg_sleep(30)")
	told(err)
	time.Sleep(200 * time.Millisecond)
	show(c, "SELECT 'after'")

	step("listen")
	_, err = c.Exec(background, "LISTEN news")
	must(err)
	_, err = c.Exec(background, "SELECT pg_notify('news', $1)", "payload")
	must(err)
	ctx, cancel := context.WithTimeout(background, 5*time.Second)
	defer cancel()
	heard, err := c.WaitForNotification(ctx)
	must(err)
	fmt.Println(heard.Channel, heard.Payload)
	_, err = c.Exec(background, "DROP TABLE IF EXISTS never_there")
	must(err)
}

// lib/pq through database/sql: prepared statements, COPY, LISTEN, cancel. Prints what each step saw under `== step`.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lib/pq"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func told(err error) {
	var e *pq.Error
	if errors.As(err, &e) {
		fmt.Println(e.Code, e.Severity, e.Message, e.Detail, e.Hint, e.Position, e.Table, e.Constraint, e.Routine)
		return
	}
	fmt.Println(err)
}

func show(db interface {
	Query(string, ...interface{}) (*sql.Rows, error)
}, query string, arguments ...interface{}) {
	rows, err := db.Query(query, arguments...)
	if err != nil {
		told(err)
		return
	}
	defer rows.Close()
	columns, _ := rows.Columns()
	types, _ := rows.ColumnTypes()
	for _, t := range types {
		fmt.Print(t.Name(), ":", t.DatabaseTypeName(), " ")
	}
	fmt.Println()
	for rows.Next() {
		cells := make([]interface{}, len(columns))
		places := make([]interface{}, len(columns))
		for n := range cells {
			places[n] = &cells[n]
		}
		must(rows.Scan(places...))
		for _, cell := range cells {
			if bytes, ok := cell.([]byte); ok {
				cell = string(bytes)
			}
			fmt.Print(cell, "|")
		}
		fmt.Println()
	}
	if err := rows.Err(); err != nil {
		told(err)
	}
}

func main() {
	for _, mode := range []string{"no", "yes"} {
		db, err := sql.Open("postgres", "sslmode=disable binary_parameters="+mode)
		must(err)
		run(db, mode)
		must(db.Close())
	}
}

func run(db *sql.DB, binary string) {
	step := func(name string) { fmt.Printf("== %s, binary parameters: %s\n", name, binary) }
	step("statements")
	_, err := db.Exec("DROP TABLE IF EXISTS thing")
	must(err)
	_, err = db.Exec("CREATE TABLE thing (id int PRIMARY KEY, name text, price numeric, at timestamptz, data bytea)")
	must(err)
	result, err := db.Exec("INSERT INTO thing VALUES ($1, $2, $3, $4, $5), (2, 'two', 2.5, NULL, NULL)", 1, "one", 1.25, time.Unix(0, 0).UTC(), []byte{0, 1, 2})
	must(err)
	affected, _ := result.RowsAffected()
	fmt.Println(affected)
	show(db, "SELECT id, name, price, data FROM thing ORDER BY id")
	show(db, "SELECT name FROM thing WHERE id = $1", 2)
	show(db, "SELECT name FROM thing WHERE id = ANY($1)", pq.Array([]int64{1, 2}))

	step("prepared")
	statement, err := db.Prepare("SELECT $1::int * 2")
	must(err)
	for n := 0; n < 4; n++ {
		var doubled int
		must(statement.QueryRow(n).Scan(&doubled))
		fmt.Println(doubled)
	}
	must(statement.Close())

	step("errors of syntax and names")
	show(db, "SELEC 1")
	show(db, "SELECT nam FROM thing WHERE id = $1", 1)

	step("errors")
	show(db, "INSERT INTO thing (id) VALUES ($1)", 1)
	show(db, "SELECT 10 / (3 - i) FROM generate_series(1, 5) AS i")
	show(db, "")

	step("transaction")
	tx, err := db.Begin()
	must(err)
	show(tx, "SELECT count(*) FROM thing")
	show(tx, "SELECT 1 / 0")
	show(tx, "SELECT 1")
	fmt.Println(tx.Commit())
	tx, err = db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelSerializable, ReadOnly: true})
	must(err)
	show(tx, "INSERT INTO thing (id) VALUES (9)")
	must(tx.Rollback())

	step("copy")
	tx, err = db.Begin()
	must(err)
	in, err := tx.Prepare(pq.CopyIn("thing", "id", "name"))
	must(err)
	for n := 100; n < 2100; n++ {
		_, err = in.Exec(n, fmt.Sprintf("name %d\t\\", n))
		must(err)
	}
	_, err = in.Exec()
	must(err)
	must(in.Close())
	must(tx.Commit())
	show(db, "SELECT count(*), md5(string_agg(name, ',' ORDER BY id)) FROM thing")
	tx, err = db.Begin()
	must(err)
	in, err = tx.Prepare(pq.CopyIn("thing", "id", "name"))
	must(err)
	_, err = in.Exec(100, "again")
	must(err)
	_, err = in.Exec()
	told(err)
	in.Close()
	fmt.Println(tx.Rollback())

	step("cancel")
	ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
	_, err = db.ExecContext(ctx, "SELECT pg_sleep(30)")
	cancel()
	told(err)
	show(db, "SELECT 'after'")

	step("several statements")
	rows, err := db.Query("SELECT 1; SELECT 2, 3")
	if err != nil {
		told(err)
	} else {
		for more := true; more; more = rows.NextResultSet() {
			for rows.Next() {
				columns, _ := rows.Columns()
				fmt.Println(len(columns))
			}
		}
		rows.Close()
	}

	step("listen")
	listener := pq.NewListener("sslmode=disable", 100*time.Millisecond, time.Second, nil)
	must(listener.Listen("news"))
	_, err = db.Exec("SELECT pg_notify('news', $1)", "payload")
	must(err)
	select {
	case n := <-listener.Notify:
		fmt.Println(n.Channel, n.Extra)
	case <-time.After(5 * time.Second):
		fmt.Println("nothing heard")
	}
	fmt.Println(listener.Ping())
	must(listener.Close())
}

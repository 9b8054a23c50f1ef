# ruby-pg: parameters, prepared statements, COPY, asynchronous and single-row results, pipelines. Under `== step`.
require "pg"

$stdout.sync = true

def step(name) = puts("== #{name}")

def told(error)
  result = error.result
  return puts(error.class.name, error.message) unless result
  puts error.class.name, %w[SEVERITY SQLSTATE MESSAGE_PRIMARY MESSAGE_DETAIL MESSAGE_HINT STATEMENT_POSITION CONSTRAINT_NAME SOURCE_FUNCTION]
    .map { |f| result.error_field(PG.const_get("PG_DIAG_#{f}")).inspect }.join(" ")
end

def failing
  p yield
rescue PG::Error => error
  told(error)
end

c = PG.connect
step "statements"
c.exec("CREATE TABLE seed (id serial PRIMARY KEY, name text UNIQUE, qty int, body bytea)")
p c.exec_params("INSERT INTO seed (name, qty) VALUES ($1, $2), ($3, 5) RETURNING id, name", ["a'b", 3, "c"]).values
p c.exec("SELECT 1; SELECT 2, 3").values
p c.exec_params("SELECT $1::int + 1, $2::text", [{ value: "41", type: 23, format: 0 }, nil], 1).values
p c.exec("").result_status

step "prepared"
c.prepare("by_id", "SELECT name, qty FROM seed WHERE id = $1")
3.times { |n| p c.exec_prepared("by_id", [n]).values }
d = c.describe_prepared("by_id")
p [d.nparams, d.paramtype(0), d.fields, d.ftype(1)]
c.exec("DEALLOCATE by_id")
failing { c.exec_prepared("by_id", [1]) }

step "errors of syntax and names"
failing { c.exec("SELEC 1") }
failing { c.exec_params("SELECT nam FROM seed WHERE id = $1", [1]) }

step "errors"
failing { c.exec_params("INSERT INTO seed (name) VALUES ($1)", ["c"]) }
failing { c.exec("SELECT 10 / (3 - i) FROM generate_series(1, 5) AS i").values }

step "transactions"
failing { c.transaction { |t| t.exec("DELETE FROM seed WHERE id = 1"); t.exec("SELECT 1/0") } }
p c.transaction_status, c.exec("SELECT count(*) FROM seed").values

step "copy"
p(c.copy_data("COPY seed (name, qty) FROM STDIN") { 3000.times { |n| c.put_copy_data("copied #{n}\t#{n}\n") } }.cmd_status)
size = 0
c.copy_data("COPY seed (name) TO STDOUT (FORMAT csv)") { while (row = c.get_copy_data) do size += row.bytesize end }
p size
failing { c.copy_data("COPY seed (name, qty) FROM STDIN") { c.put_copy_data("x\ty\n") } }
failing { c.copy_data("COPY seed (name, qty) FROM STDIN") { raise PG::Error, "changed my mind" } }
p c.exec("SELECT count(*) FROM seed").values

step "single rows"
c.send_query("SELECT i FROM generate_series(1, 1000) AS i")
c.set_single_row_mode
sum = 0
c.get_result.stream_each { |row| sum += row["i"].to_i }
p sum, c.get_result

step "cancel"
c.send_query("SELECT pg_sleep(30)")
sleep 0.3
p c.cancel
failing { c.get_last_result }
p c.exec("SELECT 'after'").values

step "notices and notifications"
c.set_notice_processor { |message| puts message }
c.exec("DROP TABLE IF EXISTS never_there")
c.exec("LISTEN news; NOTIFY news, 'payload'")
c.wait_for_notify(3) { |channel, _, payload| p [channel, payload] }

step "large objects"
failing { c.transaction { oid = c.lo_creat; fd = c.lo_open(oid, PG::INV_WRITE | PG::INV_READ); c.lo_write(fd, "x" * 70_000); c.lo_lseek(fd, 0, PG::SEEK_SET); c.lo_read(fd, 100_000).bytesize } }

step "pipeline"
if c.respond_to?(:enter_pipeline_mode)
  c.enter_pipeline_mode
  3.times { |n| c.send_query_params("SELECT $1::int", [n]) }
  c.send_query_params("SELECT 1 / $1::int", [0])
  c.send_query_params("SELECT 5", [])
  c.pipeline_sync
  6.times do
    begin
      result = c.get_last_result
      p result && [result.result_status, result.result_status == PG::PGRES_TUPLES_OK ? result.values : nil]
    rescue PG::Error => error
      puts error.class.name
    end
  end
  c.discard_results rescue p($!)
  c.exit_pipeline_mode rescue puts($!.class.name)
end

step "types and binary"
c.type_map_for_results = PG::BasicTypeMapForResults.new(c)
p c.exec("SELECT 1::int8, 1.5::float8, true, ARRAY[1, 2], '2024-02-29'::date, NULL").values
bytes = (0..255).to_a.pack("C*")
c.exec_params("UPDATE seed SET body = $1 WHERE id = 2", [{ value: bytes, format: 1 }])
p c.exec_params("SELECT body FROM seed WHERE id = 2", [], 1).getvalue(0, 0) == bytes
c.finish

<?php
// PHP: PDO with real and emulated prepares, and the pgsql extension. Prints what each step saw under `== step`.
function step(string $name): void { echo "== $name\n"; }
function show(mixed $value): void { echo json_encode($value, JSON_UNESCAPED_UNICODE | JSON_PARTIAL_OUTPUT_ON_ERROR), "\n"; }
function failing(callable $body): void {
    try { show($body()); } catch (PDOException $e) { show($e->errorInfo); }
}

foreach ([false, true] as $emulated) {
    $how = $emulated ? "emulated" : "real";
    $pdo = new PDO(sprintf("pgsql:host=%s;port=%s;dbname=%s", getenv("PGHOST"), getenv("PGPORT"), getenv("PGDATABASE")), getenv("PGUSER"), getenv("PGPASSWORD"),
        [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION, PDO::ATTR_EMULATE_PREPARES => $emulated]);
    step("statements, $how prepares");
    $pdo->exec("DROP TABLE IF EXISTS page");
    $pdo->exec("CREATE TABLE page (id serial PRIMARY KEY, title text UNIQUE, views int, body bytea, live boolean)");
    $insert = $pdo->prepare("INSERT INTO page (title, views, live) VALUES (:title, :views, :live)");
    foreach (range(1, 6) as $n) { $insert->execute(["title" => "t'$n", "views" => $n, "live" => $n % 2 ? "t" : "f"]); show($pdo->lastInsertId()); }
    $select = $pdo->prepare("SELECT id, title, live FROM page WHERE views = ? AND title LIKE ?");
    foreach (range(1, 3) as $n) { $select->execute([$n, "t%"]); show($select->fetchAll(PDO::FETCH_ASSOC)); show($select->getColumnMeta(1)); }
    show($pdo->query("SELECT 1 AS a, NULL AS b, 'ü' AS c")->fetchAll(PDO::FETCH_ASSOC));
    step("errors of syntax and names, $how prepares");
    failing(fn() => $pdo->query("SELEC 1"));
    failing(function () use ($pdo) { $s = $pdo->prepare("SELECT nam FROM page WHERE id = ?"); $s->execute([1]); });
    step("errors, $how prepares");
    failing(function () use ($pdo) { $s = $pdo->prepare("INSERT INTO page (title) VALUES (?)"); $s->execute(["t'1"]); });
    failing(function () use ($pdo) { $s = $pdo->prepare("SELECT 10 / ?::int"); $s->execute([0]); });
    step("transactions, $how prepares");
    $pdo->beginTransaction();
    failing(fn() => $pdo->query("SELECT 1 / 0"));
    failing(fn() => $pdo->query("SELECT 1"));
    $pdo->rollBack();
    $pdo->beginTransaction(); $pdo->exec("DELETE FROM page WHERE id = 1"); $pdo->rollBack();
    show($pdo->query("SELECT count(*) FROM page")->fetchColumn());
    step("cursor, $how prepares");
    $pdo->beginTransaction();
    $cursor = $pdo->prepare("SELECT i FROM generate_series(1, 10) AS i", [PDO::ATTR_CURSOR => PDO::CURSOR_SCROLL]);
    $cursor->execute();
    show([$cursor->fetchColumn(), $cursor->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_LAST), $cursor->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_PRIOR)]);
    $pdo->commit();
    step("copy, $how prepares");
    $lines = array_map(fn($n) => "copied $n\t$n", range(1, 1000));
    show($pdo->pgsqlCopyFromArray("page", $lines, "\t", "\\\\N", "title, views"));
    show(count($pdo->pgsqlCopyToArray("page", "\t", "\\\\N", "title")));
    failing(fn() => $pdo->pgsqlCopyFromArray("page", ["x\ty"], "\t", "\\\\N", "title, views"));
    step("bytes, $how prepares");
    $bytes = implode("", array_map("chr", range(0, 255)));
    $put = $pdo->prepare("UPDATE page SET body = ? WHERE id = 2");
    $put->bindValue(1, $bytes, PDO::PARAM_LOB);
    $put->execute();
    show(stream_get_contents($pdo->query("SELECT body FROM page WHERE id = 2")->fetchColumn()) === $bytes);
    step("notify, $how prepares");
    $pdo->exec("LISTEN news");
    $pdo->exec("NOTIFY news, 'payload'");
    $heard = $pdo->pgsqlGetNotify(PDO::FETCH_ASSOC, 2000);
    show([$heard["message"], $heard["payload"]]);
    $pdo = null;
}

$c = pg_connect(sprintf("host=%s port=%s dbname=%s user=%s password=%s", ...array_map("getenv", ["PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSWORD"])));
step("pgsql extension");
show(pg_fetch_all(pg_query_params($c, 'SELECT $1::int + 1 AS a, $2::text AS b', [1, "x'y"])));
pg_prepare($c, "named", 'SELECT title FROM page WHERE id = $1');
show(pg_fetch_all(pg_execute($c, "named", [2])));
show(pg_fetch_all(pg_query($c, "SELECT 1; SELECT 2")));
pg_send_query($c, "SELECT 1/0"); $r = pg_get_result($c);
show([pg_result_error_field($r, PGSQL_DIAG_SQLSTATE), pg_result_error_field($r, PGSQL_DIAG_MESSAGE_PRIMARY), pg_transaction_status($c)]);
while (pg_get_result($c));
show(pg_meta_data($c, "page"));
show([pg_ping($c), pg_parameter_status($c, "server_encoding"), pg_parameter_status($c, "integer_datetimes")]);
show(pg_insert($c, "page", ["title" => "by array", "views" => 7]) !== false);
show(pg_select($c, "page", ["title" => "by array"])[0]["views"]);
@pg_query($c, "DROP TABLE IF EXISTS never_there");
show(pg_last_notice($c));
pg_close($c);

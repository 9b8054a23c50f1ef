# DBD::Pg: server-side prepare, placeholders, COPY, asynchronous queries, large objects. Prints under `== step`.
use strict;
use warnings;
use DBI;
use DBD::Pg qw(:async);

$| = 1;
binmode STDOUT, ':encoding(UTF-8)';
my $dbh = DBI->connect("dbi:Pg:", $ENV{PGUSER}, $ENV{PGPASSWORD}, { RaiseError => 1, PrintError => 0, AutoCommit => 1 });

sub step { print "== $_[0]\n" }
sub rows { print join("|", map { $_ // 'NULL' } @$_), "\n" for @{ $_[0] } }
sub failing {
    my ($statement, @values) = @_;
    eval { my $sth = $dbh->prepare($statement); $sth->execute(@values); rows($sth->fetchall_arrayref) if $sth->{NUM_OF_FIELDS}; 1 }
        and return print "no error\n";
    print $dbh->state, " ", $dbh->errstr, "\n";
    print "  $_: ", $dbh->pg_error_field($_) // '-', "\n" for qw(severity message_primary message_detail message_hint statement_position constraint_name source_function);
}

step "statements";
print $dbh->do("CREATE TABLE tool (id serial PRIMARY KEY, name text UNIQUE, price numeric, body bytea, tags text[])"), "\n";
my $insert = $dbh->prepare("INSERT INTO tool (name, price, tags) VALUES (?, ?, ?) RETURNING id");
for my $n (1 .. 6) { $insert->execute("tool '$n", $n / 4, ["a", "b,$n"]); rows($insert->fetchall_arrayref) }
rows($dbh->selectall_arrayref("SELECT id, name, price, array_length(tags, 1) FROM tool WHERE id < ? ORDER BY id", undef, 4));
rows($dbh->selectall_arrayref('SELECT $1::int + $2::int', undef, 2, 3));
print $dbh->ping, " ", $dbh->{pg_server_version} > 0, " ", $dbh->last_insert_id(undef, undef, "tool", undef), "\n";

for my $how (0, 1) {
    step "server prepare $how";
    $dbh->{pg_server_prepare} = $how;
    $dbh->{pg_switch_prepared} = 1;
    my $sth = $dbh->prepare("SELECT name FROM tool WHERE id = ? AND price < ?");
    for my $n (1 .. 4) { $sth->execute($n, 100); rows($sth->fetchall_arrayref) }
    $sth->finish;
    undef $sth;
    my $now = $dbh->prepare("SELECT 1 AS a", { pg_prepare_now => 1 });
    $now->execute; rows($now->fetchall_arrayref); print "@{$now->{NAME}} @{$now->{pg_type}}\n";
}

step "errors of syntax and names";
failing("SELEC 1");
failing("SELECT nam FROM tool WHERE id = ?", 1);

step "errors";
failing("INSERT INTO tool (name) VALUES (?)", "tool '1");
failing("SELECT 10 / (3 - i) FROM generate_series(1, 5) AS i");
failing("SELECT 1; SELECT 2");

step "transactions";
$dbh->begin_work;
failing("SELECT 1 / 0");
failing("SELECT 1");
print $dbh->ping, "\n";
$dbh->rollback;
$dbh->begin_work;
$dbh->pg_savepoint("kept");
$dbh->do("DELETE FROM tool WHERE id = 1");
$dbh->pg_rollback_to("kept");
$dbh->commit;
rows($dbh->selectall_arrayref("SELECT count(*) FROM tool"));

step "copy";
$dbh->do("COPY tool (name, price) FROM STDIN");
$dbh->pg_putcopydata("copied $_\t$_\n") for 1 .. 2000;
print $dbh->pg_putcopyend, "\n";
$dbh->do("COPY tool (id, name) TO STDOUT");
my ($lines, $size, $line) = (0, 0);
while ($dbh->pg_getcopydata(\$line) >= 0) { $lines++; $size += length $line }
print "$lines $size\n";
$dbh->do("COPY tool (name, price) FROM STDIN");
$dbh->pg_putcopydata("bad\tnumber\n");
eval { $dbh->pg_putcopyend; 1 } or print $dbh->state, " ", $dbh->errstr, "\n";

step "asynchronous";
$dbh->do("SELECT pg_sleep(0.2), 1", { pg_async => PG_ASYNC });
print $dbh->pg_result, "\n";
my $slow = $dbh->prepare("SELECT pg_sleep(30)", { pg_async => PG_ASYNC });
$slow->execute;
select undef, undef, undef, 0.3;
print $dbh->pg_cancel, "\n";
rows($dbh->selectall_arrayref("SELECT 'after'"));

step "listen";
$dbh->do("LISTEN news");
$dbh->do("NOTIFY news, 'payload'");
my $heard = $dbh->pg_notifies;
print "$heard->[0] $heard->[2]\n";

step "notices";
local $SIG{__WARN__} = sub { print "warned: $_[0]" };
$dbh->{PrintWarn} = 1;
$dbh->do("DROP TABLE IF EXISTS never_there");

step "metadata";
rows([map { [@$_[2, 3]] } @{ $dbh->table_info(undef, "public", "tool", undef)->fetchall_arrayref }]);
rows([map { [@$_[2, 3, 5, 10]] } @{ $dbh->column_info(undef, "public", "tool", "%")->fetchall_arrayref }]);
print join(",", $dbh->primary_key(undef, "public", "tool")), "\n";

step "binary";
my $bytes = join "", map { chr } 0 .. 255;
my $put = $dbh->prepare("UPDATE tool SET body = ? WHERE id = 1");
$put->bind_param(1, $bytes, { pg_type => DBD::Pg::PG_BYTEA });
print $put->execute, "\n";
print +($dbh->selectrow_array("SELECT body FROM tool WHERE id = 1"))[0] eq $bytes ? "same\n" : "other\n";
$dbh->disconnect;

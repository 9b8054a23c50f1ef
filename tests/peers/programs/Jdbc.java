// pgjdbc: server-side prepare, autosave, fetch size, batches, COPY, cancel, metadata. Prints under `== step`.
import java.io.*;
import java.sql.*;
import java.util.*;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyManager;
import org.postgresql.largeobject.LargeObjectManager;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

public class Jdbc {
  interface Step { void run() throws Exception; }

  static Connection open(String... properties) throws SQLException {
    Properties given = new Properties();
    given.setProperty("user", System.getenv("PGUSER"));
    given.setProperty("password", System.getenv("PGPASSWORD"));
    for (int n = 0; n < properties.length; n += 2) given.setProperty(properties[n], properties[n + 1]);
    return DriverManager.getConnection("jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT")
        + "/" + System.getenv("PGDATABASE"), given);
  }

  static void step(String name, Step body) throws Exception {
    System.out.println("== " + name);
    body.run();
    System.out.flush();
  }

  static void failing(Step body) throws Exception {
    try {
      body.run();
      System.out.println("no error");
    } catch (PSQLException error) {
      ServerErrorMessage told = error.getServerErrorMessage();
      System.out.println(error.getSQLState() + " " + (told == null ? error.getMessage() : told.getSeverity() + " " + told.getMessage() + " | "
          + told.getDetail() + " | " + told.getHint() + " | " + told.getPosition() + " | " + told.getConstraint() + " | " + told.getRoutine()));
    }
  }

  static void print(ResultSet rows) throws SQLException {
    int columns = rows.getMetaData().getColumnCount();
    while (rows.next()) {
      List<String> cells = new ArrayList<>();
      for (int n = 1; n <= columns; n++) cells.add(rows.getString(n));
      System.out.println(String.join("|", cells.toString()));
    }
  }

  static void query(Connection connection, String text) throws SQLException {
    try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(text)) { print(rows); }
  }

  public static void main(String[] none) throws Exception {
    Connection connection = open();
    step("schema", () -> {
      try (Statement s = connection.createStatement()) {
        System.out.println(s.executeUpdate("CREATE TABLE part (id serial PRIMARY KEY, name varchar(40) NOT NULL, qty int, price numeric(10,2), made date, body bytea)"));
        System.out.println(s.executeUpdate("CREATE TABLE line (part int REFERENCES part, n int, UNIQUE (part, n))"));
      }
    });
    for (String threshold : new String[] {"0", "1", "5", "-1"}) {
      step("prepare threshold " + threshold, () -> {
        try (Connection c = open("prepareThreshold", threshold);
            PreparedStatement insert = c.prepareStatement("INSERT INTO part (name, qty, price, made, body) VALUES (?, ?, ?, ?, ?)", Statement.RETURN_GENERATED_KEYS);
            PreparedStatement select = c.prepareStatement("SELECT name, qty, price, made, length(body) FROM part WHERE qty = ? ORDER BY id")) {
          for (int n = 0; n < 9; n++) {
            insert.setString(1, "part " + n);
            insert.setInt(2, n);
            insert.setBigDecimal(3, new java.math.BigDecimal("1.25").multiply(new java.math.BigDecimal(n)));
            insert.setDate(4, java.sql.Date.valueOf("2024-02-29"));
            insert.setBytes(5, new byte[n * 10]);
            insert.executeUpdate();
            try (ResultSet keys = insert.getGeneratedKeys()) { keys.next(); System.out.print(keys.getInt(1) + " "); }
            select.setInt(1, n);
            try (ResultSet rows = select.executeQuery()) { print(rows); }
          }
        }
      });
    }
    for (String autosave : new String[] {"never", "always", "conservative"}) {
      step("autosave " + autosave, () -> {
        try (Connection c = open("autosave", autosave)) {
          c.setAutoCommit(false);
          query(c, "SELECT count(*) FROM part");
          failing(() -> query(c, "SELECT 1 / 0"));
          failing(() -> query(c, "SELECT 'x'::int"));
          failing(() -> query(c, "SELECT 'still here'"));
          c.commit();
          try (PreparedStatement p = c.prepareStatement("SELECT * FROM changing")) {
            try (Statement s = c.createStatement()) { s.execute("CREATE TABLE changing (a int)"); s.execute("INSERT INTO changing VALUES (1)"); }
            for (int n = 0; n < 6; n++) print(p.executeQuery());
            try (Statement s = c.createStatement()) { s.execute("ALTER TABLE changing ADD b int DEFAULT 5"); }
            failing(() -> print(p.executeQuery()));
            failing(() -> print(p.executeQuery()));
          }
          c.rollback();
        }
      });
    }
    step("errors of syntax and names", () -> {
      failing(() -> query(connection, "SELEC 1"));
      failing(() -> query(connection, "SELECT nam FROM part"));
      failing(() -> query(connection, "SELECT * FROM absent"));
    });
    step("fetch size", () -> {
      connection.setAutoCommit(false);
      try (Statement s = connection.createStatement()) {
        s.setFetchSize(100);
        int sum = 0;
        try (ResultSet rows = s.executeQuery("SELECT i FROM generate_series(1, 1234) AS i")) { while (rows.next()) sum += rows.getInt(1); }
        System.out.println(sum);
        ResultSet first = s.executeQuery("SELECT i FROM generate_series(1, 500) AS i");
        first.next();
        try (Statement other = connection.createStatement()) { other.setFetchSize(7); print(other.executeQuery("SELECT i FROM generate_series(1, 20) AS i")); }
        int seen = 1;
        while (first.next()) seen++;
        System.out.println(seen);
        s.setMaxRows(3);
        print(s.executeQuery("SELECT i FROM generate_series(1, 500) AS i"));
      }
      connection.commit();
      connection.setAutoCommit(true);
    });
    for (String rewrite : new String[] {"false", "true"}) {
      step("batch, rewritten: " + rewrite, () -> {
        try (Connection c = open("reWriteBatchedInserts", rewrite);
            PreparedStatement insert = c.prepareStatement("INSERT INTO line VALUES (?, ?)")) {
          for (int n = 0; n < 300; n++) { insert.setInt(1, 1); insert.setInt(2, n); insert.addBatch(); }
          System.out.println(insert.executeBatch().length);
          query(c, "SELECT count(*), sum(n) FROM line");
          for (int n : new int[] {400, 401, 5, 402}) { insert.setInt(1, 1); insert.setInt(2, n); insert.addBatch(); }
          try { insert.executeBatch(); } catch (BatchUpdateException e) { System.out.println(e.getSQLState() + " " + Arrays.toString(e.getUpdateCounts())); }
          query(c, "SELECT count(*), sum(n) FROM line");
          try (Statement s = c.createStatement()) {
            s.addBatch("UPDATE line SET n = n + 1000 WHERE n = 0");
            s.addBatch("DELETE FROM line WHERE n < 500");
            s.addBatch("DELETE FROM line WHERE n >= 500");
            System.out.println(Arrays.toString(s.executeBatch()));
          }
        }
      });
    }
    step("modes of query", () -> {
      for (String mode : new String[] {"simple", "extended", "extendedForPrepared", "extendedCacheEverything"}) {
        try (Connection c = open("preferQueryMode", mode); PreparedStatement p = c.prepareStatement("SELECT ?::int + 1, ?")) {
          for (int n = 0; n < 7; n++) { p.setInt(1, n); p.setString(2, "q'" + n); print(p.executeQuery()); }
          try (Statement s = c.createStatement()) {
            boolean more = s.execute("SELECT 1; UPDATE part SET qty = 0 WHERE id = 1; SELECT 2");
            while (more || s.getUpdateCount() != -1) { if (more) print(s.getResultSet()); else System.out.println(s.getUpdateCount()); more = s.getMoreResults(); }
            System.out.println(s.execute(""));
          }
        }
      }
    });
    step("copy", () -> {
      CopyManager copies = connection.unwrap(PGConnection.class).getCopyAPI();
      StringBuilder text = new StringBuilder();
      for (int n = 0; n < 3000; n++) text.append("1,").append(n).append('\n');
      System.out.println(copies.copyIn("COPY line FROM STDIN (FORMAT csv)", new StringReader(text.toString())));
      StringWriter out = new StringWriter();
      System.out.println(copies.copyOut("COPY line TO STDOUT", out) + " " + out.toString().length());
      failing(() -> copies.copyIn("COPY line FROM STDIN (FORMAT csv)", new StringReader("1,x\n")));
      failing(() -> { var in = copies.copyIn("COPY line FROM STDIN"); in.writeToCopy("1\t9999\n".getBytes(), 0, 7); in.cancelCopy(); });
      query(connection, "SELECT count(*) FROM line");
    });
    step("cancel and timeout", () -> {
      try (Statement s = connection.createStatement()) {
        Thread canceller = new Thread(() -> { try { Thread.sleep(400); s.cancel(); } catch (Exception e) { System.out.println(e); } });
        canceller.start();
        failing(() -> s.execute("SELECT pg_sleep(30)"));
        canceller.join();
        s.setQueryTimeout(1);
        failing(() -> s.execute("SELECT pg_sleep(30)"));
        s.setQueryTimeout(0);
        query(connection, "SELECT 'after'");
      }
    });
    step("warnings", () -> {
      try (Statement s = connection.createStatement()) {
        s.execute("DROP TABLE IF EXISTS never_there");
        for (SQLWarning w = s.getWarnings(); w != null; w = w.getNextWarning()) System.out.println(w.getSQLState() + " " + w.getMessage());
      }
    });
    step("notifications", () -> {
      try (Statement s = connection.createStatement(); Connection c = open(); Statement t = c.createStatement()) {
        s.execute("LISTEN news");
        t.execute("NOTIFY news, 'payload'");
        for (PGNotification n : connection.unwrap(PGConnection.class).getNotifications(2000)) System.out.println(n.getName() + " " + n.getParameter());
      }
    });
    step("metadata", () -> {
      DatabaseMetaData data = connection.getMetaData();
      print(data.getTables(null, "public", "%", new String[] {"TABLE"}));
      print(data.getColumns(null, "public", "part", "%"));
      print(data.getPrimaryKeys(null, "public", "part"));
      print(data.getImportedKeys(null, "public", "line"));
      print(data.getIndexInfo(null, "public", "line", false, true));
      print(data.getSchemas());
      print(data.getTypeInfo());
      print(data.getFunctions(null, "pg_catalog", "lower%"));
      try (PreparedStatement p = connection.prepareStatement("SELECT name, price FROM part WHERE id = ?")) {
        System.out.println(p.getMetaData().getColumnTypeName(2) + " " + p.getParameterMetaData().getParameterTypeName(1) + " " + p.getMetaData().isNullable(1));
      }
    });
    step("updatable result set and savepoints", () -> {
      connection.setAutoCommit(false);
      try (Statement s = connection.createStatement(ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE)) {
        ResultSet rows = s.executeQuery("SELECT id, name FROM part WHERE id < 4 ORDER BY id");
        rows.next(); rows.updateString(2, "renamed"); rows.updateRow();
        rows.last(); System.out.println(rows.getRow());
        Savepoint kept = connection.setSavepoint("kept");
        rows.deleteRow();
        connection.rollback(kept);
      }
      connection.commit();
      connection.setAutoCommit(true);
      query(connection, "SELECT id, name FROM part WHERE id < 4 ORDER BY id");
    });
    step("read only and isolation", () -> {
      try (Connection c = open("readOnlyMode", "always")) {
        c.setReadOnly(true);
        System.out.println(c.isReadOnly() + " " + c.isValid(5));
        failing(() -> query(c, "INSERT INTO line VALUES (1, 777777) RETURNING n"));
        c.setReadOnly(false);
        c.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
        System.out.println(c.getTransactionIsolation());
        c.setSchema("public");
        System.out.println(c.getSchema() + " " + c.getCatalog());
        c.setClientInfo("ApplicationName", "jdbc flow");
        query(c, "SHOW application_name");
      }
    });
    step("arrays and types", () -> {
      try (PreparedStatement p = connection.prepareStatement("SELECT ?::int[], ?::text[], ?::uuid, ?::jsonb, ?::timestamptz, ?::interval, ?::bool")) {
        for (int n = 0; n < 7; n++) {
          p.setArray(1, connection.createArrayOf("int4", new Integer[] {1, null, n}));
          p.setArray(2, connection.createArrayOf("text", new String[] {"a,b", "\"", null}));
          p.setObject(3, UUID.fromString("00000000-0000-0000-0000-00000000000" + n));
          p.setString(4, "{\"n\": " + n + "}");
          p.setObject(5, java.time.OffsetDateTime.parse("2024-02-29T12:00:00Z"));
          p.setString(6, "1 day");
          p.setBoolean(7, n % 2 == 0);
          print(p.executeQuery());
        }
      }
    });
    step("function call", () -> {
      try (CallableStatement call = connection.prepareCall("{? = call lower(?)}")) {
        call.registerOutParameter(1, Types.VARCHAR);
        call.setString(2, "ABC");
        call.execute();
        System.out.println(call.getString(1));
      }
    });
    connection.close();
  }
}

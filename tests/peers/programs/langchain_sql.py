"""LangChain's SQLDatabase and its tools, as an agent calls them. Prints under `== step`."""

import os
import sys

from langchain_community.tools.sql_database.tool import (
    InfoSQLDatabaseTool,
    ListSQLDatabaseTool,
    QuerySQLDatabaseTool,
)
from langchain_community.utilities import SQLDatabase
from sqlalchemy import create_engine, text

place = "{PGUSER}:{PGPASSWORD}@{PGHOST}:{PGPORT}/{PGDATABASE}".format(**os.environ)
url = f"postgresql+{sys.argv[1]}://{place}"
with create_engine(url).begin() as connection:
    connection.execute(text("CREATE TABLE city (id int PRIMARY KEY, name text NOT NULL, people int)"))
    connection.execute(
        text(
            "CREATE TABLE street (id int PRIMARY KEY, city int REFERENCES city, name varchar(40) DEFAULT 'x')"
        )
    )
    connection.execute(text("COMMENT ON TABLE city IS 'Where people live'"))
    connection.execute(text("CREATE VIEW large AS SELECT name FROM city WHERE people > 100"))
    connection.execute(text("INSERT INTO city VALUES (1, 'A''dorf', 50), (2, 'B', 500), (3, 'C', NULL)"))

database = SQLDatabase.from_uri(url, view_support=True, sample_rows_in_table_info=2)
print("== tables")
print(sorted(database.get_usable_table_names()), database.dialect)
print(ListSQLDatabaseTool(db=database).invoke(""))
print("== table info")
print(database.get_table_info())
print(InfoSQLDatabaseTool(db=database).invoke("city, large"))
print(database.get_context().keys())
print("== run")
print(database.run("SELECT name, people FROM city ORDER BY id"))
print(database.run("SELECT count(*) FROM city", fetch="one"))
print(database.run("SELECT name FROM city WHERE id = :id", parameters={"id": 2}, include_columns=True))
query = QuerySQLDatabaseTool(db=database)
print(query.invoke("SELECT name FROM large"))
print(query.invoke("UPDATE city SET people = 1 WHERE id = 1"))
print(database.run_no_throw("SELECT 1 / 0"))
print("== errors of syntax and names")
print(query.invoke("SELECT nam FROM city"))
print(query.invoke("SELEC"))

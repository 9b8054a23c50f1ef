"""A small dbt project: seeds, tables, views, incremental models, snapshots, tests. Prints under `== step`.

Arguments: the dbt program, and the folder of the project, which may be written to.
"""

import os
import re
import subprocess
import sys

import psycopg2

program, folder = sys.argv[1:]
TIMES = re.compile(r"^\d\d:\d\d:\d\d  |in \d+\.\d+s|in 0 hours.*$|\d+\.\d+ seconds.*$", re.MULTILINE)


def dbt(*command: str, note: str = "") -> None:
    print(f"== dbt {' '.join(command)}{note}")
    ran = subprocess.run(
        [program, "--no-use-colors", "--quiet", *command, "--project-dir", folder, "--profiles-dir", folder],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "DO_NOT_TRACK": "1"},
        check=False,
    )
    print(ran.returncode, TIMES.sub("", ran.stdout + ran.stderr))


dbt("debug")
dbt("seed")
dbt("run")
dbt("run", note=" once more")
dbt("snapshot")
dbt("test")
dbt("docs", "generate")
dbt("show", "--inline", "SELECT n, tons FROM {{ ref('total') }}")
print("== what is there")
with psycopg2.connect("") as connection, connection.cursor() as cursor:
    for relation in ("crop", "heavy", "total", "growing"):
        cursor.execute(f"SELECT * FROM built.{relation} ORDER BY 1")
        print(relation, cursor.fetchall())
    cursor.execute("SELECT obj_description('built.heavy'::regclass), count(*) FROM built.crop_history")
    print(cursor.fetchall())

"""The reference MCP server for PostgreSQL, driven over stdio as an agent's host drives it. Under `== step`.

Arguments: the command that starts the server.
"""

import json
import os
import subprocess
import sys

URL = "postgresql://{PGUSER}:{PGPASSWORD}@{PGHOST}:{PGPORT}/{PGDATABASE}".format(**os.environ)
server = subprocess.Popen(
    [*sys.argv[1:], URL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
)
assert server.stdin is not None and server.stdout is not None


def send(method: str, number: int | None = None, **parameters: object) -> None:
    message = {
        "jsonrpc": "2.0",
        "method": method,
        "params": parameters,
        **({} if number is None else {"id": number}),
    }
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()


def ask(number: int, method: str, **parameters: object) -> dict[str, object]:
    send(method, number, **parameters)
    while True:
        answer = json.loads(server.stdout.readline())
        if answer.get("id") == number:
            return answer


def query(number: int, statement: str) -> None:
    answer = ask(number, "tools/call", name="query", arguments={"sql": statement})
    print(json.dumps(answer.get("result") or answer.get("error")).replace(os.environ["PGPORT"], "PORT"))


print("== start")
start = ask(
    1,
    "initialize",
    protocolVersion="2024-11-05",
    capabilities={},
    clientInfo={"name": "flow", "version": "1"},
)
print(json.dumps(start["result"]))
send("notifications/initialized")
print(json.dumps(ask(2, "tools/list")["result"]))
print("== resources")
# Its resources' addresses hold the port.
listed = json.dumps(ask(3, "resources/list")["result"])
print(listed.replace(os.environ["PGPORT"], "PORT"))
for resource in json.loads(listed)["resources"]:
    read = json.dumps(ask(4, "resources/read", uri=resource["uri"]).get("result"))
    print(read.replace(os.environ["PGPORT"], "PORT"))
print("== queries")
query(5, "SELECT id, name FROM harbour ORDER BY id")
query(6, "SELECT count(*) AS n, max(name) AS m FROM harbour WHERE id > 1")
query(7, "DELETE FROM harbour WHERE id = 1")
query(8, "SELECT 1; SELECT 2")
print("== errors of syntax and names")
query(9, "SELECT nam FROM harbour")
query(10, "SELEC")
print("== after them")
query(11, "SELECT id FROM harbour LIMIT 1")
server.stdin.close()
server.terminate()
server.wait()

"""The commands of the command line, one file each: arguments in, exit code out, the work done elsewhere.

A new command is a file with a ``register`` and a line in ``ALL``.
"""

from proxy.commands import (
    audit,
    catalogs,
    check,
    demo,
    doctor,
    passwords,
    policies,
    reload,
    replay,
    review,
    rules,
    serve,
)

ALL = (demo, serve, reload, check, policies, review, replay, audit, catalogs, rules, doctor, passwords)
"""In the order in which ``--help`` lists them."""

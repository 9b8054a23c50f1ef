"""The gate: knows SQL and policy, nothing of sockets. Never imports ``proxy``."""

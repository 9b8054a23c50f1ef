"""Bytes and messages of the PostgreSQL protocol, version 3. Imports the standard library only."""

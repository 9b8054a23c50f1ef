"""The wire: knows sockets and frames, nothing of rules."""

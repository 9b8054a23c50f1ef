"""Whole bodies of other people's SQL, put to the gate and to a server side by side; run by hand."""

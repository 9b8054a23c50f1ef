"""The registry of rules: one explicit tuple, one file a rule."""

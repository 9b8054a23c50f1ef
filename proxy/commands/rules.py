"""``pgturnstile rules``: the rules' own pages."""

from __future__ import annotations

import argparse
import json

from policy import rules
from policy.diagnostics import nearest
from proxy.commands.terminal import PROGRAM, Exit, Subcommands, UsageError, add_format, command


def register(commands: Subcommands) -> None:
    """Add the command to ``commands``."""
    rules_ = command(
        commands,
        "rules",
        _rules,
        ["rules", "rules tautology-predicate"],
    )
    rules_.add_argument("name", nargs="?", metavar="NAME", help="a rule")
    add_format(rules_, "a table or JSON")


def _rules(options: argparse.Namespace) -> Exit:
    """List the rules, or print the page of one.

    A page says what the rule refuses, why, with an example of each side, and
    which part of a policy steers it.
    """
    if options.name is not None:
        return _rule_page(options.name, as_json=options.format == "json")
    listed = [
        {"name": name, "level": rule.DEFAULT, "governed_by": rule.GOVERNED_BY, "summary": summary(name)}
        for name, rule in rules.BY_NAME.items()
    ]
    if options.format == "json":
        print(json.dumps(listed, indent=2))
        return Exit.DONE
    width = max(map(len, rules.BY_NAME))
    for name, rule in rules.BY_NAME.items():
        print(f"{name:<{width}}  {rule.DEFAULT:<6}  {summary(name)}")
    return Exit.DONE


def _rule_page(name: str, *, as_json: bool) -> Exit:
    rule = rules.BY_NAME.get(name)
    if rule is None:
        close = nearest(name, rules.BY_NAME)
        advice = f"did you mean {close!r}?" if close else f"`{PROGRAM} rules` lists them."
        raise UsageError(f"There is no rule {name!r}; {advice}")
    page = rules.page(name)
    print(json.dumps({"name": name, "level": rule.DEFAULT, "page": page}) if as_json else page)
    return Exit.DONE


def summary(name: str) -> str:
    """The first line of a rule's page, without the rule's name and its quoting of code doubled."""
    return rules.page(name).splitlines()[0].removeprefix(f"{name}: ").replace("``", "`")

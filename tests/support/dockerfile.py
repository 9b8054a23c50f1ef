"""A Dockerfile as values: stages, their instructions, and commands in exec or shell form.

Owns as much of the format as the project's own file uses; anything else is an error, so that a rehearsal
cannot leave an instruction out unnoticed. Knows nothing of what an instruction does.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

KNOWN: Final = frozenset(
    {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER", "WORKDIR"}
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """``options`` are its leading ``--name=value``, ``rest`` what follows them."""

    name: str
    options: dict[str, str]
    rest: str

    @property
    def words(self) -> list[str]:
        """Of the exec form ``["a", "b"]``, else of the text between blanks."""
        return list(json.loads(self.rest)) if self.rest.startswith("[") else self.rest.split()


@dataclass(frozen=True, slots=True)
class Stage:
    """From one FROM to the next. ``base`` is an image or the name of an earlier stage."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.name == name]

    def last(self, name: str) -> Instruction:
        return self.all(name)[-1]

    @property
    def environment(self) -> dict[str, str]:
        """What ENV sets, as written."""
        words = (word for each in self.all("ENV") for word in each.words)
        return dict(word.split("=", 1) for word in words)


def read(text: str) -> dict[str, Stage]:
    """The stages by name, in order. Raises ValueError for what is not understood."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for line in _lines(text):
        instruction = _instruction(line)
        if instruction.name == "FROM":
            base, _, name = instruction.words
            stage = stages[name] = Stage(name, base)
        elif stage is not None:
            stage.instructions.append(instruction)
        elif instruction.name != "ARG":
            raise ValueError(f"before the first FROM: {line}")
    return stages


def _lines(text: str) -> list[str]:
    """Logical lines: without comments, continued ones joined."""
    kept = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return re.sub(r"\\\n\s*", " ", "\n".join(kept)).splitlines()


def _instruction(line: str) -> Instruction:
    name, _, rest = line.partition(" ")
    if name not in KNOWN:
        raise ValueError(f"unknown instruction: {line}")
    options = {}
    rest = rest.strip()
    while option := re.match(r"--([a-z-]+)=(\S+)\s+", rest):
        options[option[1]] = option[2]
        rest = rest[option.end() :]
    return Instruction(name, options, rest)

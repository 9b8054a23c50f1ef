"""Text -> a tree of values that know their place, by YAML 1.2's core schema and nothing looser.

Owns how YAML is read for policies and for the server's configuration: what a word means, what is refused, and
where every value stands. Knows nothing of what the keys mean (``reader`` and its callers do).

Stricter than YAML in what could surprise a reviewer:

- ``on``, ``off``, ``yes``, ``no`` and dates are text; only ``true`` and ``false`` are booleans.
- A key given twice is an error that names both lines.
- A key without a value in ``{…}`` is an error: a comma there ends a text that is not in quotes.
- Anchors, aliases and merge keys are refused: what holds at a line is what is written there, and nothing can
  be made to expand.
- Tags, directives other than ``%YAML 1.2`` and second documents are refused.
- Size and depth are bounded before anything is built.

PyYAML's event stream is used rather than its node graph, so that depth, aliases and tags are judged as they
are met, without recursion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import yaml

from policy.diagnostics import Diagnostic, InvalidFileError, join_path

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16
MAX_DIAGNOSTICS = 100
MAX_NUMBER_LENGTH = 40

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], int | float]], ...] = (
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+"), lambda text: int(text, 0)),
    (re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
)
_UNWELCOME = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MAY_HOLD_SECRET = re.compile(r"passw|scram|secret|token|dsn|://", re.IGNORECASE)


class Mark(NamedTuple):
    """A place in the text; both count from 1, ``column`` in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. ``text`` is what is written, before the core schema made it a number, boolean or null."""

    value: str | int | float | bool | None
    text: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    mark: Mark
    value: Node


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys in the file's order, no two alike. A key is text, whatever it would mean as a value."""

    entries: tuple[Entry, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class Broken:
    """Stands where a value was refused and the refusal is already reported."""

    mark: Mark


Node = Scalar | Sequence | Mapping | Broken


@dataclass(slots=True)
class Report:
    """The faults of one file as they are found, ``MAX_DIAGNOSTICS`` at most.

    ``quotes_lines`` is False for a file whose lines may hold secrets under any spelling of any key.
    """

    source: str
    quotes_lines: bool = True
    lines: list[str] = field(default_factory=list)
    found: list[Diagnostic] = field(default_factory=list)

    def add(self, mark: Mark, path: str, message: str, near: str | None = None) -> None:
        if len(self.found) < MAX_DIAGNOSTICS:
            excerpt = self._excerpt(mark.line)
            self.found.append(
                Diagnostic(self.source, mark.line, mark.column, path, message, near, excerpt=excerpt)
            )

    def in_order(self) -> list[Diagnostic]:
        return sorted(self.found, key=lambda d: (d.line, d.column))

    def raise_if_any(self, error: type[InvalidFileError]) -> None:
        if self.found:
            raise error(self.in_order())

    def _excerpt(self, line: int) -> str:
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return text if self.quotes_lines and not _MAY_HOLD_SECRET.search(text) else ""


@dataclass(frozen=True, slots=True)
class Document:
    """A file's one value, ``Broken`` where it has none that can be read, and what was found wrong so far."""

    root: Node
    report: Report


def read(text: bytes | str, source: str, *, quotes_lines: bool = True) -> Document:
    """Reads ``text`` (bytes must be UTF-8). ``source`` names it in diagnostics. Never raises."""
    report = Report(source, quotes_lines)
    decoded = _decode(text, report)
    root: Node = Broken(Mark(1, 1))
    if decoded is not None:
        report.lines = decoded.split("\n")
        root = _Builder(decoded, report).build()
    return Document(root, report)


def _decode(text: bytes | str, report: Report) -> str | None:
    """The text with bare ``\\n`` line ends and no byte order mark, None where it cannot be taken."""
    if len(text) > MAX_BYTES:
        report.add(Mark(1, 1), "", f"the file is larger than {MAX_BYTES} bytes")
        return None
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode("utf-8")
        report.add(_mark_after(before), "", f"not UTF-8: byte 0x{error.object[error.start]:02x}")
        return None
    text = decoded.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    unwelcome = _UNWELCOME.search(text)
    if unwelcome:
        # U+0085, U+2028 and U+2029 end a line for YAML 1.1 and not for 1.2: two readers, two files.
        shown = f"U+{ord(unwelcome.group()):04X}"
        message = f'the character {shown} may not stand in the file; write it as an escape in "double quotes"'
        report.add(_mark_after(text[: unwelcome.start()]), "", message)
        return None
    return text


def _mark_after(before: str) -> Mark:
    return Mark(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


class _UnreadableError(Exception):
    """The rest of the text cannot be read; why is already in the report."""


@dataclass(slots=True)
class _Open:
    """A collection whose end has not come. ``keys`` is None for a sequence; ``refused`` is of the whole."""

    mark: Mark
    path: str
    keys: dict[str, Mark] | None
    refused: bool
    in_braces: bool
    children: list[Node] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    key: tuple[str | None, Mark] | None = None
    """The key whose value comes next; its text is None where the key was refused."""
    key_end: int = 0
    """Where that key's spelling ends in the text."""

    @property
    def next_is_key(self) -> bool:
        return self.keys is not None and self.key is None

    def next_path(self) -> str:
        if self.keys is None:
            return join_path(self.path, len(self.children))
        return join_path(self.path, self.key[0]) if self.key and self.key[0] is not None else self.path

    def put(self, node: Node) -> None:
        if self.keys is None:
            self.children.append(node)
        elif self.key is not None:
            text, mark = self.key
            if text is not None:
                self.entries.append(Entry(text, mark, node))
            self.key = None

    def close(self) -> Node:
        if self.refused:
            return Broken(self.mark)
        if self.keys is None:
            return Sequence(tuple(self.children), self.mark)
        return Mapping(tuple(self.entries), self.mark)


class _Builder:
    """Events of one text -> its root node."""

    def __init__(self, text: str, report: Report) -> None:
        self._text = text
        self._report = report
        self._open: list[_Open] = []
        self._root: Node | None = None
        self._documents = 0

    def build(self) -> Node:
        try:
            for event in self._events():
                self._take(event)
        except _UnreadableError:
            return Broken(Mark(1, 1))
        if self._root is None or (isinstance(self._root, Scalar) and self._root.value is None):
            self._report.add(Mark(1, 1), "", "the file is empty")
            return Broken(Mark(1, 1))
        return self._root

    def _events(self) -> Iterator[yaml.Event]:
        loader = yaml.SafeLoader(self._text)
        try:
            while loader.check_event():
                yield loader.get_event()  # type: ignore[no-untyped-call]
        except yaml.MarkedYAMLError as error:
            self._syntax_error(error)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            # PyYAML hands an escape such as "\UFFFFFFFF" to chr() unchecked.
            self._stop(_mark(loader.get_mark()), f"not valid YAML: {str(error).splitlines()[0]}")
        finally:
            loader.dispose()

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> None:
        """Says it in terms of the character at fault, where that is a usual slip."""
        start = error.context_mark or error.problem_mark
        character = self._text[start.index : start.index + 1] if start else ""
        if start and character in _SLIPS:
            self._stop(_mark(start), _SLIPS[character])
        place = error.problem_mark or start
        if start and place and place.index >= len(self._text):
            place = start  # what was begun there has no end
        context = f"{error.context}, " if error.context else ""
        advice = _QUOTE.get(error.context or error.problem or "", "")
        self._stop(_mark(place) if place else Mark(1, 1), f"not valid YAML: {context}{error.problem}{advice}")

    def _stop(self, mark: Mark, message: str) -> None:
        self._report.add(mark, self._path(), message)
        raise _UnreadableError

    def _take(self, event: yaml.Event) -> None:
        mark = _mark(event.start_mark)
        match event:
            case yaml.DocumentStartEvent():
                self._begin_document(event, mark)
            case yaml.AliasEvent():
                self._report.add(mark, self._path(), f"an alias is not accepted; {_WRITE_OUT}")
                self._refused_node(mark)
            case yaml.ScalarEvent():
                if self._judge_properties(event, mark):
                    self._scalar(event, mark)
                else:
                    self._refused_node(mark)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                self._begin_collection(event, mark, refused=not self._judge_properties(event, mark))
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                self._put(self._open.pop().close())

    def _begin_document(self, event: yaml.DocumentStartEvent, mark: Mark) -> None:
        self._documents += 1
        if self._documents > 1:
            self._stop(mark, "a second YAML document; the file must hold one")
        if event.version not in (None, (1, 2)) or event.tags:
            self._stop(mark, "a YAML directive other than '%YAML 1.2' is not accepted")

    def _judge_properties(self, event: yaml.NodeEvent, mark: Mark) -> bool:
        """False where the node carries a tag or an anchor, which is reported."""
        if event.anchor is not None:
            self._report.add(mark, self._path(), f"an anchor is not accepted; {_WRITE_OUT}")
        elif getattr(event, "tag", None) is not None:
            self._report.add(mark, self._path(), "a tag is not accepted; quote the value if it is text")
        else:
            return True
        return False

    def _scalar(self, event: yaml.ScalarEvent, mark: Mark) -> None:
        text: str = event.value
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            self._report.add(mark, self._path(), "an escape here stands for no character that text may hold")
            self._refused_node(mark)
        elif self._open and self._open[-1].next_is_key:
            self._key(text, mark, plain=event.implicit[0])
            self._open[-1].key_end = _index(event.end_mark)
        elif self._open and self._lacks_its_colon(event, self._open[-1]):
            self._key_alone(self._open[-1])
        else:
            self._put(self._resolve(text, mark) if event.implicit[0] else Scalar(text, text, mark))

    def _key_alone(self, top: _Open) -> None:
        """Reports the key that stands alone and drops it: what it would be a key of, it is a part of."""
        _, mark = top.key or (None, top.mark)
        self._report.add(mark, self._path(), f"has no value; {_COMMA}")
        top.key = None

    def _lacks_its_colon(self, event: yaml.ScalarEvent, top: _Open) -> bool:
        """Whether the value is none, because the key before it in ``{…}`` stands alone."""
        at = _index(event.start_mark)
        return top.in_braces and at == _index(event.end_mark) and ":" not in self._text[top.key_end : at]

    def _key(self, text: str, mark: Mark, plain: bool) -> None:
        top = self._open[-1]
        keys = top.keys if top.keys is not None else {}
        if plain and text == "<<":
            self._report.add(mark, join_path(top.path, text), f"a merge key is not accepted; {_WRITE_OUT}")
            top.key = (None, mark)
        elif text in keys:
            message = f"given twice: on line {keys[text].line} and on line {mark.line}"
            self._report.add(mark, join_path(top.path, text), message)
            top.key = (None, mark)
        else:
            keys[text] = mark
            top.key = (text, mark)

    def _begin_collection(self, event: yaml.CollectionStartEvent, mark: Mark, refused: bool) -> None:
        if self._open and self._open[-1].next_is_key:
            self._stop(mark, "a key must be one word or a quoted text")
        if len(self._open) == MAX_DEPTH:
            self._stop(mark, f"nested more than {MAX_DEPTH} levels deep")
        keys: dict[str, Mark] | None = {} if isinstance(event, yaml.MappingStartEvent) else None
        in_braces = keys is not None and bool(event.flow_style)
        self._open.append(_Open(mark, self._path(), keys, refused, in_braces))

    def _resolve(self, text: str, mark: Mark) -> Node:
        """A plain scalar by the core schema (YAML 1.2.2 section 10.3.2)."""
        read_number = next((read for pattern, read in _NUMBERS if pattern.fullmatch(text)), None)
        if read_number is None:
            return Scalar(None if text in _NULL else _BOOL.get(text, text), text, mark)
        if len(text) > MAX_NUMBER_LENGTH:
            self._report.add(mark, self._path(), "a number with too many digits; quote it if it is text")
            return Broken(mark)
        return Scalar(read_number(text), text, mark)

    def _refused_node(self, mark: Mark) -> None:
        if self._open and self._open[-1].next_is_key:
            self._open[-1].key = (None, mark)
        else:
            self._put(Broken(mark))

    def _put(self, node: Node) -> None:
        if self._open:
            self._open[-1].put(node)
        else:
            self._root = node

    def _path(self) -> str:
        return self._open[-1].next_path() if self._open else ""


_WRITE_OUT = "write the value out where it is used, so that each line says what holds there"
_COMMA = "in {…} a comma ends a text that is not in quotes, so put one that holds a comma in quotes"
_IN_BRACKETS = "; in {…} and […] a text that holds any of , [ ] { } # : must be in quotes"
_QUOTE = {
    "while parsing a flow mapping": _IN_BRACKETS,
    "while parsing a flow sequence": _IN_BRACKETS,
    "while scanning a quoted scalar": "; a text that holds quotes must be in quotes as a whole",
    "mapping values are not allowed here": "; a text that holds a colon and a space must be in quotes",
}
"""What usually mends it, by PyYAML's words for what it was at, or for the fault where it was at nothing."""
_SLIPS = {
    "\t": "a tab cannot indent or separate here; use spaces",
    "*": 'an unquoted * starts a YAML alias; put the pattern in quotes: "*"',
    "&": "an unquoted & starts a YAML anchor; put the value in quotes",
    "!": "an unquoted ! starts a YAML tag; put the value in quotes",
    "@": "@ cannot start an unquoted value; put it in quotes",
    "`": "` cannot start an unquoted value; put it in quotes",
    "%": "% cannot start an unquoted value; put it in quotes",
}


class _PyYamlMark(Protocol):
    index: int
    line: int
    column: int


def _mark(mark: _PyYamlMark | None) -> Mark:
    """PyYAML counts from 0. Its pure-Python reader, the one used here, gives every event a mark."""
    return Mark(mark.line + 1, mark.column + 1) if mark is not None else Mark(1, 1)


def _index(mark: _PyYamlMark | None) -> int:
    """How many characters stand before it."""
    return mark.index if mark is not None else 0

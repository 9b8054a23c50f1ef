"""The one door to PostgreSQL's grammar: text in, facts of its statements out, or why it could not be read.

Owns the binding to libpg_query (PostgreSQL's own parser as a library) and the guards that must stand before a
C library that recurses: encoding, size, pathological operator runs, stack. Its currency is libpg_query's JSON
tree as a dict; no other module imports the binding. Knows nothing of policies, names or what a node means:
``extract`` reads the tree.

Why JSON and not the binding's protobuf messages: decoding those recurses in a second C library, which refuses
46 chained operators and overruns the stack at 45 KB of ``1+1+…``.

Stack. libpg_query writes its tree by recursion and has no stack check of its own. Measured on x86-64: at most
85 bytes of stack a byte of text for the parse (``1+1+…``: 170 a level, 2 bytes each), 1,000 for deparse. So a
text whose worst case needs more than ``_INLINE_STACK`` is parsed on a short-lived thread whose stack is three
times its worst case; the thread costs some 0.1 ms, which only texts over 4 KiB pay. Reserving is not
touching: an ordinary large text uses no more memory than a small one.

Recursion in Python. ``json.loads`` and the walk are bounded by the interpreter's limit, which is 1,000 by
default and too low for 400 chained ``||``; it is raised to ``_RECURSION_LIMIT`` when this module is imported.
On CPython 3.11, where the limit also bounds C recursion, ``json.loads`` was measured to take 130 bytes of
stack a level: 1 MiB at the limit, within every platform's thread. What counts as too deep is
``extract.MAX_DEPTH``, so that the same text gets the same answer however deep the caller's own stack is.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import re
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeVar

from policy.extract import SourceText, TooDeep, extract
from policy.facts import Facts, ParseFailure, QueryString, Tree

DEFAULT_MAX_BYTES: Final = 1 << 20
"""The contract's default of ``limits.statement_bytes``."""
MAX_NAMED: Final = 100_000
"""References that a text may hold, constants not counted: a megabyte of VALUES has none, and PostgreSQL takes
1,664 columns in a select list."""
MAX_ADVICE_BYTES: Final = 64 << 10
"""Longer texts get no canonical form, fingerprint or normal form."""

_INLINE_STACK: Final = 1 << 20
"""Bytes of stack that any thread is taken to have left: musl's whole thread stack under CPython."""
_PARSE_STACK: Final = 256
_ADVICE_STACK: Final = 2048
"""Bytes of stack reserved a byte of text: three and two times the worst that was measured."""
_STACK_STEP: Final = 1 << 20
_RECURSION_LIMIT: Final = 8000
_KEPT_TREES: Final = 8
"""Texts whose trees are kept, none of them heavy."""
_MAX_OPERATOR_WORK: Final = 1 << 22

_CONSTANT: Final = re.compile(rb"[0-9]|\.[0-9]|(?:[EeBbXxNn]|[Uu]&)?'|\$(?![0-9])")
"""How a token of the lexer (scan.l) begins that is a number or a string; the token's end is the lexer's."""
_TOKEN_TAG: Final = 2 << 3 | 2
"""Field 2, with its length before it."""

_OPERATOR_RUN = re.compile(rb"[-+*/<>=~!@#%^&|`?]{256,}")
_T = TypeVar("_T")
_stack_size_lock = threading.Lock()
_large_texts = threading.BoundedSemaphore(2)
"""A hostile megabyte was measured to take 0.5 GB while its tree exists: two at a time, the others wait."""

sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION_LIMIT))


class GrammarError(Exception):
    """PostgreSQL's grammar refuses the text. ``position`` counts characters from 1."""

    def __init__(self, message: str, position: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position


def parse(text: bytes | str, max_bytes: int = DEFAULT_MAX_BYTES) -> QueryString:
    """Read a query string as PostgreSQL would, and learn the facts of its statements.

    ``text`` is what a Query or Parse message carried, without its terminating zero; ``max_bytes`` the longest
    text that is looked at, in bytes of UTF-8. Never raises for any text: what cannot be read comes back as
    ``QueryString.failure``. An empty text, or one of comments and semicolons, has no statements and no
    failure.
    """
    try:
        data = text if isinstance(text, bytes) else text.encode()
        sql = text if isinstance(text, str) else text.decode()
    except UnicodeError as error:
        return _unreadable_bytes(text, error)
    failure = _guard(data, max_bytes)
    if failure is not None:
        return QueryString(sql, failure=failure)
    try:
        trees = _with_stack(_parse_tree, data, _PARSE_STACK)
        return QueryString(sql, _facts(trees, SourceText(sql, data)))
    except GrammarError as error:
        return QueryString(sql, failure=ParseFailure("unparsable", error.message, "42601", error.position))
    except (RecursionError, TooDeep):
        return QueryString(sql, failure=_too_deep())
    except (MemoryError, RuntimeError, ValueError) as error:
        # RuntimeError: no thread, or none with so large a stack, could be started. ValueError: no JSON, or a
        # text of too many references.
        return QueryString(
            sql, failure=ParseFailure("not-understood", f"could not be parsed: {error}", "54001")
        )


def parse_heavy(text: bytes | str) -> bool:
    """True where ``parse`` may take milliseconds: an event loop should call it from a worker thread."""
    return len(text) * _PARSE_STACK > _INLINE_STACK


def canonical(text: str) -> str | None:
    """PostgreSQL's own spelling of ``text``: comments gone, names folded, whitespace plain.

    None where there is none (unparsable, too long, a construct that deparse does not know). For advice and
    the audit only: what is forwarded is what the agent sent.
    """
    return _advice(text, _deparse)


def fingerprint(text: str) -> str | None:
    """16 hex digits for the shape of ``text``; None where it is unparsable or too long.

    Groups an audit. It merges different names, so it is no cache key.
    """
    return _advice(text, _fingerprint)


def normalize(text: str) -> str | None:
    """``text`` with its constants replaced by ``$n``, names and spacing as they are."""
    return _advice(text, _normalize)


def masked(text: str) -> str | None:
    """``text`` without any constant and any comment: for each constant stands ``$n``, comments are left out.

    The grammar's own normalization comes first, which knows TRUE and NULL where they are constants. It leaves
    alone what PREPARE, EXECUTE, COMMENT, defaults and options hold, so whatever the lexer takes for a
    constant is replaced as well. None where the text cannot be read that far.
    """
    normal = normalize(text)
    data = b"" if normal is None else normal.encode()
    spans = tokens(data)
    if normal is None or (not spans and data.strip()):
        return None
    number = max(
        (int(data[start + 1 : end]) for start, end in spans if _is_parameter(data, start)), default=0
    )
    pieces, at = [], 0
    for start, end in spans:
        between, token = data[at:start], data[start:end]
        pieces.append(between if between.isspace() or not between else b" ")
        if _CONSTANT.match(token):
            number += 1
            token = b"$%d" % number
        pieces.append(token)
        at = end
    return b"".join(pieces).decode()


def _is_parameter(data: bytes, start: int) -> bool:
    return data[start : start + 1] == b"$" and data[start + 1 : start + 2].isdigit()


def trees(text: str) -> tuple[Tree, ...]:
    """The statement nodes of ``text``, for what ``Facts`` do not hold; () where it cannot be read.

    Locations in them are bytes of ``text``, from 0. Nobody changes them: several readers of one statement,
    one after the other, are given the same.
    """
    return _read_trees(text) if parse_heavy(text) else _kept_trees(text)


def _read_trees(text: str) -> tuple[Tree, ...]:
    try:
        data = text.encode()
        if _guard(data, DEFAULT_MAX_BYTES) is not None:
            return ()
        return tuple(raw["stmt"] for raw in _with_stack(_parse_tree, data, _PARSE_STACK))
    except (GrammarError, UnicodeError, RecursionError, MemoryError, RuntimeError):
        return ()


_kept_trees: Final = lru_cache(maxsize=_KEPT_TREES)(_read_trees)


def tokens(text: bytes) -> tuple[tuple[int, int], ...]:
    """Where each token of ``text`` begins and ends, in bytes, as PostgreSQL's lexer cuts it; no comments.

    () where it cannot be cut: a binding without the lexer, or a text that is not to be parsed either.
    """
    try:
        if _guard(text, DEFAULT_MAX_BYTES) is not None:
            return ()
        spans = _with_stack(_scan, text, _PARSE_STACK)
    except (GrammarError, UnicodeError, MemoryError, RuntimeError, ValueError):
        return ()
    return tuple(span for span in spans if text[span[0] : span[0] + 2] not in (b"--", b"/*"))


def _unreadable_bytes(text: bytes | str, error: UnicodeError) -> QueryString:
    position = None
    if isinstance(error, UnicodeDecodeError) and isinstance(text, bytes):
        position = len(text[: error.start].decode()) + 1
    elif isinstance(error, UnicodeEncodeError):
        position = error.start + 1
    shown = (
        text.decode(errors="replace") if isinstance(text, bytes) else text.encode(errors="replace").decode()
    )
    return QueryString(
        shown, failure=ParseFailure("unparsable", "the text is not valid UTF-8", "42601", position)
    )


def _guard(data: bytes, max_bytes: int) -> ParseFailure | None:
    if len(data) > max_bytes:
        message = f"the statement is {len(data)} bytes long, over the limit of {max_bytes}"
        return ParseFailure("statement-too-large", message, "54000")
    zero = data.find(0)
    if zero >= 0:
        # C would end the text there and call the rest unsaid.
        position = len(data[:zero].decode()) + 1
        return ParseFailure("unparsable", "the text holds a zero byte", "42601", position)
    if _operator_work(data) > _MAX_OPERATOR_WORK:
        return ParseFailure("not-understood", "too long a run of operator characters", "54001")
    return None


def _operator_work(data: bytes) -> int:
    """Steps that PostgreSQL's lexer (scan.l) spends on long runs of operator characters.

    It reads a whole run and gives back all but one token wherever it meets ``/*`` or a trailing ``+`` or
    ``-``, so the cost is the length of the run times their number: 64 KB of ``/*`` took 4 s, in the server
    too. A step was measured at 1 to 2.5 ns; a banner or a ruled table in a comment is far below the bound.
    """
    if len(data) ** 2 <= _MAX_OPERATOR_WORK:
        return 0
    work = 0
    for found in _OPERATOR_RUN.finditer(data):
        run = found[0]
        work += len(run) * (run.count(b"/*") + run.count(b"+"))
    return work


def _facts(trees: list[Tree], text: SourceText) -> tuple[Facts, ...]:
    found = tuple(extract(tree, text) for tree in trees)
    if sum(map(_named, found)) > MAX_NAMED:
        raise ValueError(f"it refers to more than {MAX_NAMED} columns, calls and operators")
    return found


def _named(facts: Facts) -> int:
    lists = (facts.columns, facts.functions, facts.operators, facts.types, facts.relations, facts.queries)
    return sum(map(len, lists))


def _too_deep() -> ParseFailure:
    return ParseFailure("not-understood", "the statement is nested too deep", "54001")


def _advice(text: str, call: Callable[[bytes], str | None]) -> str | None:
    try:
        data = text.encode()
        if _guard(data, MAX_ADVICE_BYTES) is not None:
            return None
        return _with_stack(call, data, _ADVICE_STACK)
    except (GrammarError, MemoryError, RuntimeError, ValueError):
        return None


def _with_stack(call: Callable[[bytes], _T], data: bytes, stack_per_byte: int) -> _T:
    """``call(data)``, on a thread with ``stack_per_byte`` bytes of stack a byte where this one may not do."""
    needed = len(data) * stack_per_byte
    if needed <= _INLINE_STACK:
        return call(data)
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call(data))
        except BaseException as error:  # re-raised in the caller's thread
            errors.append(error)

    size = -(-(needed + _INLINE_STACK) // _STACK_STEP) * _STACK_STEP
    with _large_texts:
        with _stack_size_lock:
            before = threading.stack_size(size)
            try:
                thread = threading.Thread(target=run, name="pg-parse", daemon=True)
                thread.start()
            finally:
                threading.stack_size(before)
        thread.join()
    if errors:
        raise errors[0]
    return results[0]


class _Libpg:
    """libpg_query through ctypes, as the postgast package ships it. Every call releases the GIL."""

    def __init__(self, native: Any) -> None:
        self._lib = native.lib

    def parse_tree(self, data: bytes) -> list[Tree]:
        result = self._lib.pg_query_parse(data)
        try:
            _raise_error(result)
            tree = result.parse_tree
        finally:
            self._lib.pg_query_free_parse_result(result)
        statements: list[Tree] = json.loads(tree).get("stmts", [])
        return statements

    def deparse(self, data: bytes) -> str | None:
        # Protobuf from C to C: Python never decodes it.
        parsed = self._lib.pg_query_parse_protobuf(data)
        try:
            _raise_error(parsed)
            deparsed = self._lib.pg_query_deparse_protobuf(parsed.parse_tree)
            try:
                _raise_error(deparsed)
                return _text(deparsed.query)
            finally:
                self._lib.pg_query_free_deparse_result(deparsed)
        finally:
            self._lib.pg_query_free_protobuf_parse_result(parsed)

    def fingerprint(self, data: bytes) -> str | None:
        result = self._lib.pg_query_fingerprint(data)
        try:
            _raise_error(result)
            return _text(result.fingerprint_str)
        finally:
            self._lib.pg_query_free_fingerprint_result(result)

    def normalize(self, data: bytes) -> str | None:
        result = self._lib.pg_query_normalize(data)
        try:
            _raise_error(result)
            return _text(result.normalized_query)
        finally:
            self._lib.pg_query_free_normalize_result(result)

    def scan(self, data: bytes) -> list[tuple[int, int]]:
        result = self._lib.pg_query_scan(data)
        try:
            _raise_error(result)
            return _spans(ctypes.string_at(result.pbuf.data, result.pbuf.len))
        finally:
            self._lib.pg_query_free_scan_result(result)


class _Pgparse:
    """The fallback binding: the same tree from PostgreSQL 17's grammar, no deparse and no lexer."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def parse_tree(self, data: bytes) -> list[Tree]:
        return self._call(self._module.parse, data)  # type: ignore[no-any-return]

    def deparse(self, data: bytes) -> str | None:  # noqa: ARG002 - the seam's
        return None

    def scan(self, data: bytes) -> list[tuple[int, int]]:  # noqa: ARG002 - the seam's
        return []

    def fingerprint(self, data: bytes) -> str | None:
        return str(self._call(self._module.fingerprint, data))

    def normalize(self, data: bytes) -> str | None:
        return str(self._call(self._module.normalize, data))

    def _call(self, function: Callable[[str], Any], data: bytes) -> Any:
        try:
            return function(data.decode())
        except self._module.PGQueryError as error:
            raise GrammarError(error.message, error.position or None) from None


def _spans(message: bytes) -> list[tuple[int, int]]:
    """The tokens of libpg_query's ScanResult: ``version = 1; repeated ScanToken tokens = 2``.

    A token has ``start = 1; end = 2; token = 4; keyword_kind = 5``, all varints, left out where they are 0.
    """
    spans: list[tuple[int, int]] = []
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag != _TOKEN_TAG:
            continue
        end, fields = at + value, {1: 0, 2: 0}
        while at < end:
            tag, at = _varint(message, at)
            fields[tag >> 3], at = _varint(message, at)
        spans.append((fields[1], fields[2]))
    return spans


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _raise_error(result: Any) -> None:
    if result.error:
        error = result.error.contents
        message = _text(error.message) or "the text is not SQL that PostgreSQL knows"
        raise GrammarError(message, error.cursorpos if error.cursorpos > 0 else None)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _load_binding() -> _Libpg | _Pgparse:
    # By name, not by an import statement: either may be absent, and neither has stubs that type checkers
    # accept.
    try:
        return _Libpg(importlib.import_module("postgast.native"))
    except (ImportError, OSError):
        return _Pgparse(importlib.import_module("pgparse"))


_binding = _load_binding()


def _parse_tree(data: bytes) -> list[Tree]:
    return _binding.parse_tree(data)


def _scan(data: bytes) -> list[tuple[int, int]]:
    return _binding.scan(data)


def _deparse(data: bytes) -> str | None:
    return _binding.deparse(data)


def _fingerprint(data: bytes) -> str | None:
    return _binding.fingerprint(data)


def _normalize(data: bytes) -> str | None:
    return _binding.normalize(data)

"""Passwords from files: read anew when they have changed, refused when they cannot be, never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proxy import credentials, scram
from proxy.credentials import PasswordFile, SecretError, VerifierFile
from proxy.scram import Verifier

SECRET = "open-sesame-7"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(SECRET + "\n", encoding="utf-8")
    return path


def replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_one_line_with_or_without_its_end(path: Path, ending: str) -> None:
    replace(path, f"pä ss{ending}".encode())
    assert PasswordFile(path).password() == "pä ss"


def test_a_file_that_has_changed_is_read_anew(path: Path) -> None:
    file = PasswordFile(path)
    assert file.password() == SECRET
    replace(path, b"rotated")
    assert file.password() == "rotated"
    path.write_text("in place", encoding="utf-8")
    assert file.password() == "in place"


def test_a_file_of_the_same_size_and_time_is_told_by_its_identity(path: Path) -> None:
    file = PasswordFile(path)
    assert file.password() == SECRET
    before = path.stat()
    replace(path, b"OPEN-SESAME-7\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.password() == "OPEN-SESAME-7"


def test_a_file_that_has_not_changed_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PasswordFile(path)
    file.password()
    monkeypatch.setattr(PasswordFile, "_fresh", lambda self: pytest.fail("read again"))
    assert file.password() == SECRET


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "1 to 4096 bytes"),
        (b"\n", "1 to 4096 bytes"),
        (b"x" * 4097, "1 to 4096 bytes"),
        (b"x" * 100_000, "1 to 4096 bytes"),
        (b"a\nb\n", "one line"),
        (b"a\0b", "one line"),
        (b"stra\xdfe", "not UTF-8"),
        (None, "No such file"),
    ],
    ids=["empty", "an empty line", "too long", "far too long", "two lines", "NUL", "Latin-1", "gone"],
)
def test_what_can_be_no_password_opens_nothing(path: Path, content: bytes | None, why: str) -> None:
    """Neither by itself nor by what the file held before; and it is looked at again the next time."""
    file = PasswordFile(path)
    file.password()
    if content is None:
        path.unlink()
    else:
        replace(path, content)
    for _ in range(2):
        with pytest.raises(SecretError, match=why):
            file.password()
    replace(path, b"mended")
    assert file.password() == "mended"


def test_a_verifier_follows_its_file(path: Path) -> None:
    source = VerifierFile(PasswordFile(path), "bot")
    first = source.verifier()
    assert Verifier.derive(SECRET, first.salt, first.iterations) == first
    path.touch()
    assert source.verifier() is first
    replace(path, b"rotated")
    assert Verifier.derive("rotated", first.salt, first.iterations) == source.verifier()
    path.unlink()
    with pytest.raises(SecretError):
        source.verifier()


def test_nothing_shows_the_password(path: Path) -> None:
    source = VerifierFile(PasswordFile(path), "bot")
    source.verifier()
    assert SECRET not in repr(source)
    assert SECRET not in repr(source.file)
    for text in (SECRET * 1000, SECRET + "\n"):
        with pytest.raises(SecretError) as caught:
            credentials.checked(text)
        assert SECRET not in str(caught.value)


def test_an_agents_salt_is_made_as_that_of_a_name_that_is_none(path: Path) -> None:
    """A name that becomes an agent, or ceases to be one, shows no other salt."""
    known = VerifierFile(PasswordFile(path), "bot").verifier()
    assert known.salt == scram.mock_verifier("bot", credentials.NAMES.secret).salt

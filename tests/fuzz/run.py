"""``python -m tests.fuzz.run TARGET SECONDS FOLDER``: one target in a process of its own.

With atheris inputs are bred by what code they reach; without, by mutation alone. ``FOLDER`` keeps the corpus
between runs and takes the input of a finding. Exits with 0 where nothing was found.
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LONGEST: Final = 4096
"""Bytes of an input."""
_SLOW_S: Final = 20
"""Seconds for one input, above which it is a finding."""


def main(name: str, seconds: int, folder: Path) -> int:
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    if importlib.util.find_spec("atheris") is None:
        return mutate(name, seconds, folder)
    import atheris

    with atheris.instrument_imports(include=["policy", "proxy"]):
        from tests.fuzz.targets import TARGETS, found
    for seed in [*TARGETS[name].seeds, *found(name)]:
        (corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={_LONGEST}",
        f"-timeout={_SLOW_S}",
        "-rss_limit_mb=4096",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], TARGETS[name].check)
    atheris.Fuzz()
    return 0


def mutate(name: str, seconds: float, folder: Path) -> int:
    """The same without coverage: seeds, cut and spliced and bent at random."""
    from tests.fuzz.targets import TARGETS, found

    target = TARGETS[name]
    pool = [*target.seeds, *found(name)]
    chosen = random.Random()
    end, runs = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = _bent(chosen, pool)
        runs += 1
        try:
            target.check(data)
        except BaseException:
            (folder / f"crash-{hashlib.sha1(data).hexdigest()}").write_bytes(data)
            raise
    print(f"{runs} inputs, without coverage: atheris is not installed")
    return 0


def _bent(chosen: random.Random, pool: list[bytes]) -> bytes:
    data = bytearray(chosen.choice(pool))
    for _ in range(chosen.randint(1, 8)):
        chosen.choice(_BENDS)(chosen, data, pool)
    return bytes(data[:_LONGEST])


def _flip(chosen: random.Random, data: bytearray, pool: list[bytes]) -> None:
    if data:
        data[chosen.randrange(len(data))] = chosen.choice((0, 1, 4, 127, 128, 255, chosen.randrange(256)))


def _cut(chosen: random.Random, data: bytearray, pool: list[bytes]) -> None:
    at = chosen.randint(0, len(data))
    del data[at : at + chosen.randint(1, 16)]


def _splice(chosen: random.Random, data: bytearray, pool: list[bytes]) -> None:
    other = chosen.choice(pool)
    begin = chosen.randint(0, len(other))
    at = chosen.randint(0, len(data))
    data[at:at] = other[begin : begin + chosen.randint(1, 200)]


_BENDS: Final[tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...]] = (_flip, _cut, _splice)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))

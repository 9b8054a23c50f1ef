"""docker/Dockerfile, instruction by instruction, in a folder that stands for the image.

An engine is not asked for: what RUN, COPY, USER, ENTRYPOINT, CMD and HEALTHCHECK do is done here, with the
image's absolute paths taken below a scratch folder, and started by a user who owns nothing of it. What is the
base images' alone (packages of Debian, their Python) is named, not done.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.scram import Verifier
from tests.support import dockerfile
from tests.support.dockerfile import Instruction, Stage
from tests.support.proxy import free_port, wait_for

ROOT: Final = Path(__file__).parent.parent.parent
STAGES: Final = dockerfile.read((ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8"))
IGNORED: Final = (ROOT / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
OF_DEBIAN: Final = "apt-get "
MADE: Final = ("src", "opt", "etc/pgturnstile", "var/lib/pgturnstile", "usr/local/bin")
"""Folders that the Dockerfile makes or fills; a path below them is one of the image's."""


def placed(root: Path, text: str) -> str:
    """``text`` with every path of the image below ``root``."""
    return re.sub(rf"(?<![\w/.])/(?=(?:{'|'.join(MADE)})(?![\w-]))", f"{root}/", text)


def is_open_to_all(path: Path) -> bool:
    """Whether every user may enter the folders above ``path``."""
    return all(folder.stat().st_mode & 0o001 for folder in path.parents)


def _python() -> Path:
    """The Python of the base image: this one, unless only its owner may run it and the system has another."""
    own, system = Path(sys.executable).resolve(), Path("/usr/bin/python3")
    asked = "import ensurepip, os, sys, sysconfig; os.stat(sysconfig.get_path('include') + '/Python.h'); "
    asked += "sys.exit(sys.version_info < (3, 11))"
    if is_open_to_all(own) or not system.exists():
        return own
    fits = subprocess.run([system, "-c", asked], capture_output=True, check=False).returncode == 0
    return system if fits else own


PYTHON: Final = _python()


def is_sent(path: str) -> bool:
    """Whether a build is given ``path`` of the repository: the last pattern that fits decides."""
    sent = True
    for line in IGNORED:
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        fits = fnmatch.fnmatch(path, pattern) or path.startswith(f"{pattern}/")
        if pattern.startswith("**/"):
            fits = fnmatch.fnmatch(Path(path).name, pattern[3:]) or f"/{pattern[3:]}/" in path
        if fits:
            sent = line.startswith("!")
    return sent


# --- read, not run ---


def test_every_stage_but_those_that_build_ends_as_somebody_who_is_not_root() -> None:
    last = {name for name in STAGES if name not in ("build", "agent-build")}
    assert last == {"agent", "proxy"}
    for name in last:
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", STAGES[name].last("USER").rest)
        after = STAGES[name].instructions[STAGES[name].instructions.index(STAGES[name].last("USER")) :]
        assert not [each for each in after if each.name in ("RUN", "COPY")], "written as the user it runs as"


def test_stages_stand_on_one_slim_image() -> None:
    assert {stage.base for stage in STAGES.values()} == {"python:${PYTHON}-slim"}


def test_a_build_is_sent_what_is_copied_and_no_secret() -> None:
    for stage in STAGES.values():
        for copied in stage.all("COPY"):
            for source in copied.words[:-1]:
                if "from" not in copied.options:
                    assert (ROOT / source).exists()
                    assert is_sent(source), source
    for other in (
        ".git/config",
        "docker/.env",
        "docker/pgturnstile.yaml",
        "tests/conftest.py",
        ".venv/bin/python",
    ):
        assert not is_sent(other), other
    assert is_sent("policy/examples/read-only.yaml")
    assert not is_sent("proxy/__pycache__/cli.cpython-313.pyc")


def test_what_is_installed_of_the_agent_is_what_the_project_tries() -> None:
    (install,) = STAGES["agent-build"].all("RUN")
    assert shlex.split(install.rest)[-1] in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("FROM a AS b\nADD x /y\n", "unknown instruction: ADD"),
        ("RUN true\n", "before the first FROM"),
        ('FROM a AS b\nRUN true \\\n # not a comment here?\n  && false\nSHELL ["x"]', "unknown instruction"),
    ],
)
def test_what_cannot_be_rehearsed_is_an_error(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        dockerfile.read(text)


# --- built and started ---


class Image:
    """Stages carried out one after the other, each in a folder of its own below ``scratch``."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.left_out: list[str] = []

    def root(self, stage: str) -> Path:
        return self._scratch / stage

    def build(self, stage: Stage) -> None:
        self.root(stage.name).mkdir()
        arguments: dict[str, str] = {}
        for each in stage.instructions:
            if each.name == "ARG":
                name, _, default = each.rest.partition("=")
                arguments[name] = default
            elif each.name == "COPY":
                self._copy(stage.name, each)
            elif each.name == "RUN":
                self._run(stage.name, each, arguments)

    def _copy(self, stage: str, copy: Instruction) -> None:
        *sources, target = copy.words
        at = self.root(stage) / target.removeprefix("/")
        origin = copy.options.get("from")
        for source in sources:
            path = ROOT / source if origin is None else self.root(origin) / source.removeprefix("/")
            if path.is_dir():
                # A folder's contents go into the target, symbolic links as they are.
                # What the repository ignores is not sent to a build; a stage is copied whole.
                left = shutil.ignore_patterns(*([] if origin else ["__pycache__", "*.so"]))
                shutil.copytree(path, at, symlinks=True, ignore=left)
            else:
                into = at / path.name if target.endswith("/") else at
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, into)

    def _run(self, stage: str, run: Instruction, arguments: dict[str, str]) -> None:
        if run.rest.startswith(OF_DEBIAN):
            self.left_out.append(run.rest)
            return
        command = placed(self.root(stage), run.rest)
        if os.geteuid() != 0:
            command = re.sub(r"--(owner|group) \d+ ", "", command)
        command = re.sub(r"(?<![\w/])python (?=-m)", f"{PYTHON} ", command)
        done = subprocess.run(
            ["sh", "-ec", command],
            env=os.environ | arguments,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def moved(root: Path, origin: Path) -> None:
    """Tell the environment that was copied to ``root`` where it is: in an image both paths are the same."""
    for path in (root / "opt/pgturnstile/bin").iterdir():
        if path.is_file() and not path.is_symlink() and path.read_bytes().startswith(b"#!"):
            path.write_text(path.read_text().replace(f"{origin}/", f"{root}/"))


@pytest.mark.slow
def test_the_image_is_built_started_found_healthy_and_stopped() -> None:
    # Not below pytest's folder, which another user may not enter.
    with tempfile.TemporaryDirectory(prefix="image-") as scratch:
        Path(scratch).chmod(0o755)
        _rehearse(Path(scratch))


def _rehearse(scratch: Path) -> None:
    image = Image(scratch)
    proxy = STAGES["proxy"]
    for name in ("build", "proxy"):
        image.build(STAGES[name])
    assert len(image.left_out) == 1, "only the compiler is Debian's"
    root = image.root("proxy")
    moved(root, image.root("build"))
    assert not list((root / "opt/pgturnstile").rglob("pip")), "the image has no installer"
    environment = {
        name: placed(root, value).replace("$PATH", os.environ["PATH"])
        for name, value in proxy.environment.items()
    }
    started = _Started(root, environment, proxy)
    started.configure()
    assert started.run(["--version"]).startswith("pgturnstile ")
    started.serve_and_check()


class _Started:
    """The container's process: the image's user, environment, working folder, entry point and command."""

    def __init__(self, root: Path, environment: dict[str, str], stage: Stage) -> None:
        self._root = root
        self._environment = environment
        self._entry = stage.last("ENTRYPOINT").words
        self._command = [placed(root, word) for word in stage.last("CMD").words]
        self._check = stage.last("HEALTHCHECK").rest.partition("CMD ")[2]
        self._folder = root / stage.last("WORKDIR").rest.removeprefix("/")
        user, group = map(int, stage.last("USER").rest.split(":"))
        self._as: dict[str, Any] = (
            {"user": user, "group": group, "extra_groups": []}
            if os.geteuid() == 0 and is_open_to_all(PYTHON)
            else {}
        )
        self._admin = free_port()

    def configure(self) -> None:
        self._folder.mkdir(parents=True)
        document = {
            "version": 1,
            "listen": {"port": free_port()},
            "backend": {"port": free_port()},
            "agents": {
                "a": {
                    "auth": {"scram": str(Verifier.derive("secret"))},
                    "login": {"user": "a"},
                    "policy": "policies/analyst.yaml",
                }
            },
            "admin": {"port": self._admin},
            "audit": {"path": str(self._root / "var/lib/pgturnstile/audit.jsonl")},
        }
        (self._folder / "pgturnstile.yaml").write_text(json.dumps(document), encoding="utf-8")
        shutil.copytree(ROOT / "docker" / "policies", self._folder / "policies")

    def run(self, arguments: list[str]) -> str:
        """What the command prints."""
        done = subprocess.run(
            [*self._entry, *arguments],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **self._as,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve_and_check(self) -> None:
        log = self._root / "log"
        with (
            log.open("w") as stderr,
            subprocess.Popen(
                [*self._entry, *self._command],
                env=self._environment,
                cwd=self._folder,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                **self._as,
            ) as process,
        ):
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("ready "), log.read_text()
                told = json.loads(log.read_text().splitlines()[0])
                assert all(told["compiled"].values()), told
                wait_for(lambda: self._healthy() == 0, within_s=10)
                ready = f"http://127.0.0.1:{self._admin}/readyz"
                with pytest.raises(urllib.error.HTTPError):
                    urllib.request.urlopen(ready, timeout=10)  # there is no database server
            finally:
                process.terminate()
            assert process.wait(30) == 0, log.read_text()
        assert self._healthy() != 0
        audit = self._root / "var/lib/pgturnstile/audit.jsonl"
        assert audit.stat().st_mode & 0o777 == 0o600

    def _healthy(self) -> int:
        words = [word.replace(":6433/", f":{self._admin}/") for word in json.loads(self._check)]
        return subprocess.run(
            words, env=self._environment, capture_output=True, timeout=20, check=False, **self._as
        ).returncode

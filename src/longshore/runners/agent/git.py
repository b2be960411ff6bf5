"""Running git where nothing but us decides what it does.

It sees no settings of the machine or of a user, asks nobody anything, runs no hook, no filter and
no helper that we did not name, and speaks one transport at most. It ends by the deadline with all
that it has started, and whatever floods us with words is cut off.
"""

from __future__ import annotations

import io
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from longshore.core.error_categories import ErrorCategory
from longshore.runners.agent.git_troubles import GitFailed, failure

ANSWER_LIMIT_BYTES: Final = 64 * 1024 * 1024
_WORDS_LIMIT_BYTES = 16 * 1024
_PIECE_BYTES = 64 * 1024
_FEW_BYTES = 1024
_LOOK_S = 0.5
# Where nobody is who could be asked.
NO_TRANSPORT: Final = "none"

# What of the child's own environment git may need to reach a server.
_PASSED_ON = (
    *("PATH", "SSH_AUTH_SOCK", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"),
    *("NO_PROXY", "no_proxy", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
_FIXED = {
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_SSH_VARIANT": "ssh",
    "GIT_SSH_COMMAND": (
        "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15"
        " -o ForwardAgent=no -o ForwardX11=no -o PermitLocalCommand=no -o ClearAllForwardings=yes"
    ),
}
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.askPass=",
    # Empty: forget all those before.
    "credential.helper=",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "diff.ignoreSubmodules=all",
    "gc.auto=0",
    "maintenance.auto=false",
    # One pack a fetch, and no thousands of small files.
    "fetch.unpackLimit=1",
    "transfer.bundleURI=false",
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=60",
    "core.fsync=committed,reference",
    "init.defaultBranch=main",
)


class TooMuch(GitFailed):
    """Git had more to say than was wanted; what came until then is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How git may reach one server."""

    transport: str = NO_TRANSPORT
    credential_helper: str | None = None
    redirects: bool = True
    settings_file: Path | None = None  # of ours, in place of a user's
    # Files that git and all that it starts keep open, whatever becomes of us.
    held: Sequence[int] = ()

    @property
    def settings(self) -> tuple[str, ...]:
        """In the words of git's configuration."""
        helper = (f"credential.helper={self.credential_helper}",) if self.credential_helper else ()
        return (f"http.followRedirects={'initial' if self.redirects else 'false'}", *helper)


NOWHERE: Final = Access()


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """Git, until a moment on the clock of ``time.monotonic``.

    Args:
        environment: The child's own; only what git needs to reach a server is taken from it.
        alive: Called now and then while git is at work.
    """

    deadline: float
    environment: Mapping[str, str] = field(default_factory=dict)
    alive: Callable[[], None] = lambda: None

    def run(
        self,
        *arguments: str,
        doing: str,
        repository: Path,
        tree: Path | None = None,
        index: Path | None = None,
        access: Access = NOWHERE,
        given: bytes = b"",
        into: IO[bytes] | None = None,
        limit: int = ANSWER_LIMIT_BYTES,
    ) -> bytes:
        """Run it in a repository, and in a tree of files if one is named; what it answers.

        Args:
            doing: What it is for, for the error.
            index: In place of the repository's own list of files.
            given: What it may read.
            into: Where the answer goes, if it is not to be returned.

        Raises:
            GitFailed: it failed, or there is none.
            TimeoutError: the deadline came first.
            TooMuch: the answer is longer than ``limit``.
        """
        command = [self._program(), *self._options(access), *arguments]
        answer = io.BytesIO() if into is None else into
        with tempfile.TemporaryFile() as reading:
            reading.write(given)
            reading.seek(0)
            with subprocess.Popen(
                command,
                stdin=reading,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=tree or repository,
                env=self._environment(
                    access, GIT_DIR=repository, GIT_WORK_TREE=tree, GIT_INDEX_FILE=index
                ),
                pass_fds=tuple(access.held),
                # Its own, so that it ends with all that it has started.
                process_group=0,
            ) as process:
                try:
                    words = self._attend(process, answer, limit, doing)
                except BaseException:
                    _end(process)
                    raise
        if process.returncode != 0:
            raise failure(doing, words.decode(errors="replace"), process.returncode)
        return answer.getvalue() if isinstance(answer, io.BytesIO) else b""

    def _program(self) -> str:
        program = shutil.which("git", path=self.environment.get("PATH", os.defpath))
        if program is None:
            message = "there is no git on this worker: install git (2.32 or newer), or correct PATH"
            raise GitFailed(message, ErrorCategory.NOT_FOUND)
        return program

    def _options(self, access: Access) -> list[str]:
        settings = (*_SETTINGS, *access.settings)
        return [word for setting in settings for word in ("-c", setting)]

    def _environment(self, access: Access, **places: Path | None) -> dict[str, str]:
        passed = {name: self.environment[name] for name in _PASSED_ON if name in self.environment}
        if access.settings_file is not None:
            places["GIT_CONFIG_GLOBAL"] = access.settings_file
        # A folder that is named outright is not judged by who owns it.
        named = {name: str(place) for name, place in places.items() if place is not None}
        allowed = {"GIT_ALLOW_PROTOCOL": access.transport}
        return {"PATH": os.defpath, **passed, **_FIXED, **allowed, **named}

    def _attend(
        self, process: subprocess.Popen[bytes], answer: IO[bytes], limit: int, doing: str
    ) -> bytes:
        """Take what it says until it has ended; the last of its words."""
        words: deque[bytes] = deque(maxlen=_WORDS_LIMIT_BYTES // _FEW_BYTES)
        room, told = limit, time.monotonic()
        with selectors.DefaultSelector() as ready:
            for stream in filter(None, (process.stdout, process.stderr)):
                ready.register(stream, selectors.EVENT_READ)
            while ready.get_map():
                found = ready.select(min(self._left(doing), _LOOK_S))
                if time.monotonic() - told >= _LOOK_S:
                    told = time.monotonic()
                    self.alive()
                if not found and process.poll() is not None:
                    # Somebody whom it left behind holds its pipes.
                    _end(process)
                    break
                for key, _ in found:
                    mine = key.fileobj is process.stdout
                    piece = os.read(key.fd, _PIECE_BYTES if mine else _FEW_BYTES)
                    if not piece:
                        ready.unregister(key.fileobj)
                    elif mine:
                        answer.write(piece[:room])
                        room = max(room - len(piece), -1)
                    else:
                        words.append(piece)
                if room < 0:
                    message = f"{doing}: git's answer is longer than {limit} bytes"
                    raise TooMuch(message, ErrorCategory.VALIDATION)
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._left(doing))
        self._left(doing)
        return b"".join(words)

    def _left(self, doing: str) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            message = f"{doing}: git was not done when the time was up"
            raise TimeoutError(message)
        return left


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of it and of all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

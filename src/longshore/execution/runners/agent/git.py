"""Runs git isolated from the configuration of the machine.

Git sees no settings of the system or of a user, prompts for nothing, runs no hook, filter or helper
that is not named here, and uses at most one transport. Git and the processes that it has started
end at the deadline, and its output is limited.
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

from longshore.core.tasks.error_categories import ErrorCategory
from longshore.execution.runners.agent.git_errors import GitFailed, failure_of_git

OUTPUT_LIMIT_BYTES: Final = 64 * 1024 * 1024
_STDERR_LIMIT_BYTES = 16 * 1024
_CHUNK_BYTES = 64 * 1024
_STDERR_CHUNK_BYTES = 1024
_POLL_S = 0.5
# For commands that reach no server.
NO_TRANSPORT: Final = "none"

# The variables of the child's environment that git may need to reach a server.
_INHERITED_VARIABLES = (
    *("PATH", "SSH_AUTH_SOCK", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"),
    *("NO_PROXY", "no_proxy", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
_FIXED_VARIABLES = {
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
_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.askPass=",
    # Empty: resets the list of helpers.
    "credential.helper=",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "diff.ignoreSubmodules=all",
    "gc.auto=0",
    "maintenance.auto=false",
    # One pack per fetch instead of thousands of small files.
    "fetch.unpackLimit=1",
    "transfer.bundleURI=false",
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=60",
    "core.fsync=committed,reference",
    "init.defaultBranch=main",
)


class GitOutputTooLarge(GitFailed):
    """Git's output exceeds the limit; the output up to the limit is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitAccess:
    """How git may reach one server."""

    transport: str = NO_TRANSPORT
    credential_helper: str | None = None
    follow_redirects: bool = True
    config_file: Path | None = None  # in place of a user's
    # File descriptors that git and its children keep open, also after this process has ended.
    inherited_fds: Sequence[int] = ()

    @property
    def config_options(self) -> tuple[str, ...]:
        """The access as git configuration options."""
        helper = (f"credential.helper={self.credential_helper}",) if self.credential_helper else ()
        return (f"http.followRedirects={'initial' if self.follow_redirects else 'false'}", *helper)


NO_ACCESS: Final = GitAccess()


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """Runs git commands until a deadline.

    Args:
        deadline: On the clock of ``time.monotonic``.
        environment: The child's environment; only what git needs to reach a server is used.
        on_poll: Called regularly while git runs.
    """

    deadline: float
    environment: Mapping[str, str] = field(default_factory=dict)
    on_poll: Callable[[], None] = lambda: None

    def run(
        self,
        *arguments: str,
        operation: str,
        repository: Path,
        tree: Path | None = None,
        index: Path | None = None,
        access: GitAccess = NO_ACCESS,
        stdin: bytes = b"",
        stdout: IO[bytes] | None = None,
        limit: int = OUTPUT_LIMIT_BYTES,
    ) -> bytes:
        """Run git in a repository, and in a work tree if one is given. Returns its output.

        Args:
            operation: The purpose of the command, for error messages.
            index: In place of the repository's own index.
            stdin: The input of the command.
            stdout: Where the output is written, if it is not to be returned.

        Raises:
            GitFailed: git failed or is not installed.
            TimeoutError: the deadline has passed.
            GitOutputTooLarge: the output is longer than ``limit``.
        """
        command = [self._program(), *self._options(access), *arguments]
        output = io.BytesIO() if stdout is None else stdout
        with tempfile.TemporaryFile() as stdin_file:
            stdin_file.write(stdin)
            stdin_file.seek(0)
            with subprocess.Popen(
                command,
                stdin=stdin_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=tree or repository,
                env=self._environment(
                    access, GIT_DIR=repository, GIT_WORK_TREE=tree, GIT_INDEX_FILE=index
                ),
                pass_fds=tuple(access.inherited_fds),
                # Its own group, so that git can be killed with everything that it has started.
                process_group=0,
            ) as process:
                try:
                    stderr = self._communicate(process, output, limit, operation)
                except BaseException:
                    _kill(process)
                    raise
        if process.returncode != 0:
            raise failure_of_git(operation, stderr.decode(errors="replace"), process.returncode)
        return output.getvalue() if isinstance(output, io.BytesIO) else b""

    def _program(self) -> str:
        program = shutil.which("git", path=self.environment.get("PATH", os.defpath))
        if program is None:
            message = "there is no git on this worker: install git (2.32 or newer), or correct PATH"
            raise GitFailed(message, ErrorCategory.NOT_FOUND)
        return program

    def _options(self, access: GitAccess) -> list[str]:
        settings = (*_CONFIG, *access.config_options)
        return [argument for setting in settings for argument in ("-c", setting)]

    def _environment(self, access: GitAccess, **paths: Path | None) -> dict[str, str]:
        passed = {
            name: self.environment[name]
            for name in _INHERITED_VARIABLES
            if name in self.environment
        }
        if access.config_file is not None:
            paths["GIT_CONFIG_GLOBAL"] = access.config_file
        # Git does not check the owner of a folder that is named explicitly.
        named = {name: str(path) for name, path in paths.items() if path is not None}
        allowed = {"GIT_ALLOW_PROTOCOL": access.transport}
        return {"PATH": os.defpath, **passed, **_FIXED_VARIABLES, **allowed, **named}

    def _communicate(
        self, process: subprocess.Popen[bytes], output: IO[bytes], limit: int, operation: str
    ) -> bytes:
        """Read git's output until git has ended. Returns the end of its error output."""
        stderr: deque[bytes] = deque(maxlen=_STDERR_LIMIT_BYTES // _STDERR_CHUNK_BYTES)
        bytes_left, polled_at = limit, time.monotonic()
        with selectors.DefaultSelector() as selector:
            for stream in filter(None, (process.stdout, process.stderr)):
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                events = selector.select(min(self._time_left(operation), _POLL_S))
                if time.monotonic() - polled_at >= _POLL_S:
                    polled_at = time.monotonic()
                    self.on_poll()
                if not events and process.poll() is not None:
                    # A process that git left behind holds its pipes open.
                    _kill(process)
                    break
                for key, _ in events:
                    is_stdout = key.fileobj is process.stdout
                    chunk = os.read(key.fd, _CHUNK_BYTES if is_stdout else _STDERR_CHUNK_BYTES)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif is_stdout:
                        output.write(chunk[:bytes_left])
                        bytes_left = max(bytes_left - len(chunk), -1)
                    else:
                        stderr.append(chunk)
                if bytes_left < 0:
                    message = f"{operation}: git's output is longer than {limit} bytes"
                    raise GitOutputTooLarge(message, ErrorCategory.VALIDATION)
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._time_left(operation))
        self._time_left(operation)
        return b"".join(stderr)

    def _time_left(self, operation: str) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            message = f"{operation}: git did not finish before the deadline"
            raise TimeoutError(message)
        return left


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill git and everything that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

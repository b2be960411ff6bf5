"""Runs git isolated from the configuration of the machine, and classifies its errors.

Git sees no settings of the system or of a user, prompts for nothing, runs no hook, filter or
helper, and uses at most one transport. Git and the processes that it has started end at the
deadline, and its output is limited.

Git has one exit code for nearly every error, so its messages have to be parsed; it runs with an
English locale.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar, Final, NamedTuple

from longshore.core.agents.repositories import CREDENTIALS_REMEDY
from longshore.core.tasks.failures import ErrorCategory, Failure, FailureRaised, error_text
from longshore.core.text.sanitise import safe_excerpt

OUTPUT_LIMIT_BYTES: Final = 64 * 1024 * 1024
_STDERR_EXCERPT_BYTES = 16 * 1024
_POLL_S = 0.5
_EXCERPT_CHARACTERS = 200
_NO_TRANSPORT = "none"

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
    "http.followRedirects=initial",
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=60",
    "core.fsync=committed,reference",
    "init.defaultBranch=main",
)


class GitFailed(FailureRaised):
    """Git failed; the category decides whether the task is retried."""

    def __init__(self, message: str, category: ErrorCategory) -> None:
        super().__init__(Failure(category=category, message=error_text(message)))


class UnknownRef(GitFailed):
    """The repository has no such branch, tag or commit."""

    remedy: ClassVar[str] = (
        "there is no branch, tag or commit of that name in it: correct 'ref' (a commit is given by"
        " its whole id of 40 characters)"
    )


class RepositoryDamaged(GitFailed):
    """The local copy of a repository is damaged; a new copy may repair it."""


class GitOutputTooLarge(GitFailed):
    """Git's output exceeds the limit; the output up to the limit is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """Runs git commands until a deadline.

    Args:
        deadline: On the clock of ``time.monotonic``.
        environment: The child's environment; only what git needs to reach a server is used.
        transport: The only transport by which it may reach a server.
        config_file: In place of a user's.
        inherited_fds: File descriptors that git and its children keep open, also after this
            process has ended.
    """

    deadline: float
    environment: Mapping[str, str] = field(default_factory=dict)
    transport: str = _NO_TRANSPORT
    config_file: Path | None = None
    inherited_fds: Sequence[int] = ()

    def run(
        self,
        *arguments: str,
        operation: str,
        repository: Path,
        tree: Path | None = None,
        index: Path | None = None,
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
        options = [argument for setting in _CONFIG for argument in ("-c", setting)]
        # Files, not pipes: no process that git leaves behind can delay the end of the output.
        with (
            tempfile.TemporaryFile() as stdin_file,
            tempfile.TemporaryFile() as stdout_file,
            tempfile.TemporaryFile() as stderr,
        ):
            stdin_file.write(stdin)
            stdin_file.seek(0)
            output = stdout or stdout_file
            process = subprocess.Popen(
                [self._program(), *options, *arguments],
                stdin=stdin_file,
                stdout=output,
                stderr=stderr,
                cwd=tree or repository,
                env=self._environment(GIT_DIR=repository, GIT_WORK_TREE=tree, GIT_INDEX_FILE=index),
                pass_fds=self.inherited_fds,
                # Its own group, so that git can be killed with everything that it has started.
                process_group=0,
            )
            try:
                self._wait(process, operation, {output: limit, stderr: OUTPUT_LIMIT_BYTES})
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if _size(output) > limit:
                output.truncate(limit)
                message = f"{operation}: git's output is longer than {limit} bytes"
                raise GitOutputTooLarge(message, ErrorCategory.VALIDATION)
            if process.returncode != 0:
                error = _read_end(stderr, _STDERR_EXCERPT_BYTES).decode(errors="replace")
                raise failure_of_git(operation, error, process.returncode)
            return _read_end(stdout_file, limit)

    def _program(self) -> str:
        program = shutil.which("git", path=self.environment.get("PATH", os.defpath))
        if program is None:
            message = "there is no git on this worker: install git (2.32 or newer), or correct PATH"
            raise GitFailed(message, ErrorCategory.NOT_FOUND)
        return program

    def _environment(self, **paths: Path | None) -> dict[str, str]:
        passed = {
            name: self.environment[name]
            for name in _INHERITED_VARIABLES
            if name in self.environment
        }
        paths["GIT_CONFIG_GLOBAL"] = self.config_file
        # Git does not check the owner of a folder that is named explicitly.
        named = {name: str(path) for name, path in paths.items() if path is not None}
        allowed = {"GIT_ALLOW_PROTOCOL": self.transport}
        return {"PATH": os.defpath, **passed, **_FIXED_VARIABLES, **allowed, **named}

    def _wait(
        self, process: subprocess.Popen[bytes], operation: str, limits: Mapping[IO[bytes], int]
    ) -> None:
        """Wait until git has ended, or one of its output files is larger than its limit."""
        while all(_size(file) <= limit for file, limit in limits.items()):
            if (left := self.deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"{operation}: git did not finish before the deadline")
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(left, _POLL_S))
                return


def replace_file(file: Path, text: str) -> None:
    """Write a file of a repository anew; a link of that name is replaced, not followed."""
    file.unlink(missing_ok=True)
    with open(file, "x") as stream:
        stream.write(text)


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _read_end(file: IO[bytes], size: int) -> bytes:
    """Returns the last ``size`` bytes of a file."""
    file.seek(max(file.seek(0, os.SEEK_END) - size, 0))
    return file.read()


class _ErrorRule(NamedTuple):
    pattern: str
    category: ErrorCategory
    remedy: str
    kind: type[GitFailed] = GitFailed


# The first matching rule wins. ssh ends every failure with a message about access rights, so
# specific rules come before general ones.
_ERROR_RULES = (
    _ErrorRule(
        r"no space left on device|disk quota exceeded",
        ErrorCategory.SERVER_ERROR,
        "the worker's disk is full: make room, or delete the cache of repositories",
    ),
    _ErrorRule(
        r"bad object|loose object|object file .{0,300} is empty|packfile .{0,300} (?:is|cannot be)"
        r"|unable to read (?:tree|sha1|[0-9a-f]{40})|missing (?:blob|tree|commit)|bad tree"
        r"|not a git repository|did not send all necessary objects|bad signature|corrupt"
        r"|invalid sha1 pointer|failed to traverse parents|inflate:",
        ErrorCategory.CRASH,
        "the worker's copy of the repository is damaged, and a new one as well: look at its disk",
        RepositoryDamaged,
    ),
    _ErrorRule(
        r"find remote ref|not our ref|unadvertised object",
        ErrorCategory.VALIDATION,
        UnknownRef.remedy,
        UnknownRef,
    ),
    _ErrorRule(
        r"transport '[^']*' not allowed",
        ErrorCategory.VALIDATION,
        "it leads to a transport that is not allowed: give the address that it leads to",
    ),
    _ErrorRule(
        r"returned error: 30[1-8]|unable to update url base from redirection",
        ErrorCategory.VALIDATION,
        "the repository has moved: give the address that it has now",
    ),
    _ErrorRule(
        r"mismatched algorithms|unknown (?:object|hash) (?:format|algorithm)",
        ErrorCategory.VALIDATION,
        "its object format is not SHA-1, and no other is understood",
    ),
    _ErrorRule(
        r"host key verification failed|no matching host key",
        ErrorCategory.AUTH,
        "the worker does not know the key of that host: add it to known_hosts of the worker's user",
    ),
    _ErrorRule(
        r"ssl certificate problem|certificate verif|unable to get local issuer",
        ErrorCategory.AUTH,
        "the certificate of that host is not trusted: give the worker the one of its issuer",
    ),
    _ErrorRule(
        r"returned error: 429|too many requests",
        ErrorCategory.RATE_LIMIT,
        "try again later",
    ),
    _ErrorRule(
        r"returned error: 5\d\d",
        ErrorCategory.SERVER_ERROR,
        "the server failed",
    ),
    _ErrorRule(
        r"could not read (?:username|password)|authentication failed|terminal prompts disabled"
        r"|returned error: 40[137]|permission denied|access denied|dubious ownership",
        ErrorCategory.AUTH,
        f"there is none, or the worker may not read it: give it access ({CREDENTIALS_REMEDY})",
    ),
    _ErrorRule(
        r"returned error: (?:404|410)|repository '[^']*' not found|repository not found"
        r"|does not appear to be a git repository|does not exist",
        ErrorCategory.NOT_FOUND,
        "there is no repository at this address, or not for this worker: correct it, or give the"
        f" worker access ({CREDENTIALS_REMEDY})",
    ),
    _ErrorRule(
        r"could not resolve|failed to connect|couldn't connect|unable to access|timed out"
        r"|connection (?:was )?(?:refused|reset|closed|aborted)|early eof|rpc failed|hung up"
        r"|unexpected disconnect|too slow|kex_exchange|network is unreachable|no route to host"
        r"|empty reply|could not read from remote|protocol error|bad line length|expected flush",
        ErrorCategory.NETWORK,
        "the server could not be reached, or the connection broke",
    ),
)


def failure_of_git(operation: str, stderr: str, exit_code: int) -> GitFailed:
    """Returns the failure of a git command, from its exit code and its error output."""
    excerpt = _excerpt(stderr)
    if exit_code < 0:
        message = f"{operation}: git was ended by signal {-exit_code}"
        return GitFailed(message, ErrorCategory.CRASH)
    # A server may report damage in its own copy too, on lines that start with "remote:".
    local_lines = "\n".join(line for line in stderr.splitlines() if not line.startswith("remote:"))
    for pattern, category, remedy, kind in _ERROR_RULES:
        text = local_lines if kind is RepositoryDamaged else stderr
        if re.search(pattern, text, re.IGNORECASE):
            return kind(f"{operation}: {remedy} (git: {excerpt})", category)
    message = (
        f"{operation}: git ended with exit code {exit_code}: {excerpt or 'it did not say why'}"
    )
    return GitFailed(message, ErrorCategory.EXIT_CODE)


def _excerpt(stderr: str) -> str:
    """The line that matters most: the first that git itself calls an error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("fatal:", "error:", "ERROR:"))]
    return safe_excerpt((errors or lines or [""])[0], limit=_EXCERPT_CHARACTERS)

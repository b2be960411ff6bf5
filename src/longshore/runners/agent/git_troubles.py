"""What git says when it fails, and what that means: a category, and what a person can do about it.

Git has one exit code for nearly everything, so its words have to be read; it is made to speak
English. The first row that fits counts: ssh closes each failure with words about access rights,
whatever the reason was, so what is particular stands above what is general.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal, NamedTuple

from longshore.core.agents.repositories import CREDENTIALS_REMEDY
from longshore.core.error_categories import ErrorCategory
from longshore.core.sanitise import safe_excerpt

_SAID_CHARACTERS = 200


class GitFailed(Exception):
    """Git could not do what was asked; the category decides about another attempt."""

    def __init__(self, message: str, category: ErrorCategory) -> None:
        self.message = message
        self.category = category
        super().__init__(message, category)

    def __str__(self) -> str:
        return self.message

    @property
    def longshore_decision(self) -> Literal["retry", "fail"]:
        """What ``Retry`` and ``Fail`` say by their type."""
        return "retry" if self.category.retryable else "fail"


class UnknownRef(GitFailed):
    """The repository has no such branch, tag or commit."""

    remedy: ClassVar[str] = (
        "there is no branch, tag or commit of that name in it: correct 'ref' (a commit is given by"
        " its whole id of 40 characters)"
    )


class Damaged(GitFailed):
    """A copy of a repository on this machine is not whole; a new one would be."""


class _Row(NamedTuple):
    pattern: re.Pattern[str]
    category: ErrorCategory
    remedy: str
    kind: type[GitFailed] = GitFailed


def _row(
    pattern: str, category: ErrorCategory, remedy: str, kind: type[GitFailed] = GitFailed
) -> _Row:
    return _Row(re.compile(pattern, re.IGNORECASE), category, remedy, kind)


_ROWS = (
    _row(
        r"no space left on device|disk quota exceeded",
        ErrorCategory.SERVER_ERROR,
        "the worker's disk is full: make room, or delete the cache of repositories",
    ),
    _row(
        r"bad object|loose object|object file .{0,300} is empty|packfile .{0,300} (?:is|cannot be)"
        r"|unable to read (?:tree|sha1|[0-9a-f]{40})|missing (?:blob|tree|commit)|bad tree"
        r"|not a git repository|did not send all necessary objects|bad signature|corrupt"
        r"|invalid sha1 pointer|failed to traverse parents|inflate:",
        ErrorCategory.CRASH,
        "the worker's copy of the repository is damaged, and a new one as well: look at its disk",
        Damaged,
    ),
    _row(
        r"find remote ref|not our ref|unadvertised object",
        ErrorCategory.VALIDATION,
        UnknownRef.remedy,
        UnknownRef,
    ),
    _row(
        r"transport '[^']*' not allowed",
        ErrorCategory.VALIDATION,
        "it leads to a transport that is not allowed: give the address that it leads to",
    ),
    _row(
        r"returned error: 30[1-8]|unable to update url base from redirection",
        ErrorCategory.VALIDATION,
        "the repository has moved: give the address that it has now",
    ),
    _row(
        r"mismatched algorithms|unknown (?:object|hash) (?:format|algorithm)",
        ErrorCategory.VALIDATION,
        "its object format is not SHA-1, and no other is understood",
    ),
    _row(
        r"host key verification failed|no matching host key",
        ErrorCategory.AUTH,
        "the worker does not know the key of that host: add it to known_hosts of the worker's user",
    ),
    _row(
        r"ssl certificate problem|certificate verif|unable to get local issuer",
        ErrorCategory.AUTH,
        "the certificate of that host is not trusted: give the worker the one of its issuer",
    ),
    _row(r"returned error: 429|too many requests", ErrorCategory.RATE_LIMIT, "try again later"),
    _row(r"returned error: 5\d\d", ErrorCategory.SERVER_ERROR, "the server failed"),
    _row(
        r"could not read (?:username|password)|authentication failed|terminal prompts disabled"
        r"|returned error: 40[137]|permission denied|access denied|dubious ownership",
        ErrorCategory.AUTH,
        f"there is none, or the worker may not read it: give it access ({CREDENTIALS_REMEDY})",
    ),
    _row(
        r"returned error: (?:404|410)|repository '[^']*' not found|repository not found"
        r"|does not appear to be a git repository|does not exist",
        ErrorCategory.NOT_FOUND,
        "there is no repository at this address, or not for this worker: correct it, or give the"
        f" worker access ({CREDENTIALS_REMEDY})",
    ),
    _row(
        r"could not resolve|failed to connect|couldn't connect|unable to access|timed out"
        r"|connection (?:was )?(?:refused|reset|closed|aborted)|early eof|rpc failed|hung up"
        r"|unexpected disconnect|too slow|kex_exchange|network is unreachable|no route to host"
        r"|empty reply|could not read from remote|protocol error|bad line length|expected flush",
        ErrorCategory.NETWORK,
        "the server could not be reached, or the connection broke",
    ),
)


def failure(doing: str, said: str, exit_code: int) -> GitFailed:
    """Why git, which was ``doing`` something, ended with this code after these words."""
    excerpt = _excerpt(said)
    if exit_code < 0:
        message = f"{doing}: git was ended by signal {-exit_code}"
        return GitFailed(message, ErrorCategory.CRASH)
    # Of damage in its own copy a server may speak as well.
    here = "\n".join(line for line in said.splitlines() if not line.startswith("remote:"))
    for row in _ROWS:
        if row.pattern.search(here if row.kind is Damaged else said):
            return row.kind(f"{doing}: {row.remedy} (git: {excerpt})", row.category)
    message = f"{doing}: git ended with exit code {exit_code}: {excerpt or 'it did not say why'}"
    return GitFailed(message, ErrorCategory.EXIT_CODE)


def _excerpt(said: str) -> str:
    """The line that matters most: the first that git itself calls an error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("fatal:", "error:", "ERROR:"))]
    return safe_excerpt((errors or lines or [""])[0], limit=_SAID_CHARACTERS)

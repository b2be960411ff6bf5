"""Classifies git's error messages: an error category and a remedy for each.

Git has one exit code for nearly everything, so its messages have to be parsed; it runs with an
English locale. The first matching rule wins. ssh ends every failure with a message about access
rights, so specific rules come before general ones.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal, NamedTuple

from longshore.core.agents.repositories import CREDENTIALS_REMEDY
from longshore.core.tasks.error_categories import ErrorCategory
from longshore.core.text.sanitise import safe_excerpt

_EXCERPT_CHARACTERS = 200


class GitFailed(Exception):
    """Git failed; the category decides whether the task is retried."""

    def __init__(self, message: str, category: ErrorCategory) -> None:
        self.message = message
        self.category = category
        super().__init__(message, category)

    def __str__(self) -> str:
        return self.message

    @property
    def longshore_decision(self) -> Literal["retry", "fail"]:
        """The decision that ``Retry`` and ``Fail`` express by their type."""
        return "retry" if self.category.retryable else "fail"


class UnknownRef(GitFailed):
    """The repository has no such branch, tag or commit."""

    remedy: ClassVar[str] = (
        "there is no branch, tag or commit of that name in it: correct 'ref' (a commit is given by"
        " its whole id of 40 characters)"
    )


class RepositoryDamaged(GitFailed):
    """The local copy of a repository is damaged; a new copy may repair it."""


class _ErrorRule(NamedTuple):
    pattern: re.Pattern[str]
    category: ErrorCategory
    remedy: str
    kind: type[GitFailed] = GitFailed


def _rule(
    pattern: str, category: ErrorCategory, remedy: str, kind: type[GitFailed] = GitFailed
) -> _ErrorRule:
    return _ErrorRule(re.compile(pattern, re.IGNORECASE), category, remedy, kind)


_ERROR_RULES = (
    _rule(
        r"no space left on device|disk quota exceeded",
        ErrorCategory.SERVER_ERROR,
        "the worker's disk is full: make room, or delete the cache of repositories",
    ),
    _rule(
        r"bad object|loose object|object file .{0,300} is empty|packfile .{0,300} (?:is|cannot be)"
        r"|unable to read (?:tree|sha1|[0-9a-f]{40})|missing (?:blob|tree|commit)|bad tree"
        r"|not a git repository|did not send all necessary objects|bad signature|corrupt"
        r"|invalid sha1 pointer|failed to traverse parents|inflate:",
        ErrorCategory.CRASH,
        "the worker's copy of the repository is damaged, and a new one as well: look at its disk",
        RepositoryDamaged,
    ),
    _rule(
        r"find remote ref|not our ref|unadvertised object",
        ErrorCategory.VALIDATION,
        UnknownRef.remedy,
        UnknownRef,
    ),
    _rule(
        r"transport '[^']*' not allowed",
        ErrorCategory.VALIDATION,
        "it leads to a transport that is not allowed: give the address that it leads to",
    ),
    _rule(
        r"returned error: 30[1-8]|unable to update url base from redirection",
        ErrorCategory.VALIDATION,
        "the repository has moved: give the address that it has now",
    ),
    _rule(
        r"mismatched algorithms|unknown (?:object|hash) (?:format|algorithm)",
        ErrorCategory.VALIDATION,
        "its object format is not SHA-1, and no other is understood",
    ),
    _rule(
        r"host key verification failed|no matching host key",
        ErrorCategory.AUTH,
        "the worker does not know the key of that host: add it to known_hosts of the worker's user",
    ),
    _rule(
        r"ssl certificate problem|certificate verif|unable to get local issuer",
        ErrorCategory.AUTH,
        "the certificate of that host is not trusted: give the worker the one of its issuer",
    ),
    _rule(r"returned error: 429|too many requests", ErrorCategory.RATE_LIMIT, "try again later"),
    _rule(r"returned error: 5\d\d", ErrorCategory.SERVER_ERROR, "the server failed"),
    _rule(
        r"could not read (?:username|password)|authentication failed|terminal prompts disabled"
        r"|returned error: 40[137]|permission denied|access denied|dubious ownership",
        ErrorCategory.AUTH,
        f"there is none, or the worker may not read it: give it access ({CREDENTIALS_REMEDY})",
    ),
    _rule(
        r"returned error: (?:404|410)|repository '[^']*' not found|repository not found"
        r"|does not appear to be a git repository|does not exist",
        ErrorCategory.NOT_FOUND,
        "there is no repository at this address, or not for this worker: correct it, or give the"
        f" worker access ({CREDENTIALS_REMEDY})",
    ),
    _rule(
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
    for rule in _ERROR_RULES:
        if rule.pattern.search(local_lines if rule.kind is RepositoryDamaged else stderr):
            return rule.kind(f"{operation}: {rule.remedy} (git: {excerpt})", rule.category)
    message = (
        f"{operation}: git ended with exit code {exit_code}: {excerpt or 'it did not say why'}"
    )
    return GitFailed(message, ErrorCategory.EXIT_CODE)


def _excerpt(stderr: str) -> str:
    """The line that matters most: the first that git itself calls an error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("fatal:", "error:", "ERROR:"))]
    return safe_excerpt((errors or lines or [""])[0], limit=_EXCERPT_CHARACTERS)

"""Servers that the command line remembers: their addresses and keys, in one file of its user's.

The file (the setting ``contexts_file``) holds keys, so it is for its owner alone, and one that
others can read is not believed.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from longshore.core.ids import NAME_PATTERN, is_name
from longshore.errors import ConfigurationError, UsageError

_MODE = 0o600
_OTHERS_MASK = 0o077
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """A server, and the key to it. Without a key, the environment or the machine's own has one."""

    url: str
    key: str | None = field(default=None, repr=False)
    insecure: bool = False  # the key may cross a network in the clear


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContexts:
    """All that are remembered, and which is in use."""

    by_name: Mapping[str, ServerContext] = field(default_factory=dict)
    current_name: str | None = None

    def get(self, name: str) -> ServerContext:
        """One of them.

        Raises:
            UsageError: there is none of that name.
        """
        if (found := self.by_name.get(name)) is None:
            known = ", ".join(sorted(self.by_name)) or "there are none"
            message = f"no context is called {name!r}: {known}; see `longshore contexts add --help`"
            raise UsageError(message)
        return found

    def current(self) -> ServerContext | None:
        """The one in use."""
        return self.by_name.get(self.current_name) if self.current_name else None

    def add(self, name: str, context: ServerContext) -> ServerContexts:
        """One more, or one changed; it is in use from now on."""
        return ServerContexts(by_name={**self.by_name, name: context}, current_name=name)

    def remove(self, name: str) -> ServerContexts:
        """One less."""
        self.get(name)
        rest = {one: context for one, context in self.by_name.items() if one != name}
        return ServerContexts(
            by_name=rest, current_name=None if self.current_name == name else self.current_name
        )

    def select(self, name: str | None) -> ServerContexts:
        """Another one in use; None for this machine's folder."""
        if name is not None:
            self.get(name)
        return replace(self, current_name=name)


def validate_name(name: str) -> str:
    """A name for a context.

    Raises:
        UsageError: it is none.
    """
    if not is_name(name):
        message = f"{name!r} cannot be the name of a context: expected {NAME_PATTERN.pattern}"
        raise UsageError(message)
    return name


def validate_url(text: str) -> str:
    """The address of a server, without what does not belong to it.

    Raises:
        UsageError: it is none.
    """
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or parts.username or parts.password:
        message = (
            f"{_without_credentials(text)!r} is no address of a server: write http://127.0.0.1:8421"
        )
        raise UsageError(message)
    return text.rstrip("/")


def _without_credentials(text: str) -> str:
    # A password that somebody wrote into it must not come out on a screen.
    return text.split("@")[-1][:200]


def is_loopback(url: str) -> bool:
    """Whether an address leads to this machine alone."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def load(path: Path) -> ServerContexts:
    """All that are remembered; none if there is no file.

    Raises:
        ConfigurationError: others can read the file, or it holds something else.
    """
    path = path.expanduser()
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ServerContexts()
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise ConfigurationError([problem]) from error
    if mode & _OTHERS_MASK:
        problem = (
            f"{path} holds keys and can be read by others: `chmod 600 {path}`, and make new keys"
        )
        raise ConfigurationError([problem])
    try:
        return _from_document(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UsageError) as error:
        problem = f"{path} does not hold contexts: remove it, and add them again"
        raise ConfigurationError([problem]) from error


def _from_document(document: Any) -> ServerContexts:
    if document["format"] != _FORMAT:
        raise ValueError
    found = {
        validate_name(name): ServerContext(
            url=validate_url(one["url"]), key=one.get("key"), insecure=one.get("insecure") is True
        )
        for name, one in document["contexts"].items()
    }
    in_use = document.get("current")
    return ServerContexts(by_name=found, current_name=in_use if in_use in found else None)


def save(contexts: ServerContexts, path: Path) -> None:
    """Keep them, whole or not at all."""
    path = path.expanduser()
    document = {
        "format": _FORMAT,
        "current": contexts.current_name,
        "contexts": {
            name: {"url": one.url, "key": one.key, "insecure": one.insecure}
            for name, one in contexts.by_name.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        opened = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)

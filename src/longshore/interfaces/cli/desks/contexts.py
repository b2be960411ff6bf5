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
_OTHERS = 0o077
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A server, and the key to it. Without a key, the environment or the machine's own has one."""

    url: str
    key: str | None = field(default=None, repr=False)
    insecure: bool = False  # the key may cross a network in the clear


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """All that are remembered, and which is in use."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    in_use: str | None = None

    def named(self, name: str) -> Context:
        """One of them.

        Raises:
            UsageError: there is none of that name.
        """
        if (found := self.by_name.get(name)) is None:
            known = ", ".join(sorted(self.by_name)) or "there are none"
            message = f"no context is called {name!r}: {known}; see `longshore contexts add --help`"
            raise UsageError(message)
        return found

    def current(self) -> Context | None:
        """The one in use."""
        return self.by_name.get(self.in_use) if self.in_use else None

    def with_(self, name: str, context: Context) -> Contexts:
        """One more, or one changed; it is in use from now on."""
        return Contexts(by_name={**self.by_name, name: context}, in_use=name)

    def without(self, name: str) -> Contexts:
        """One less."""
        self.named(name)
        rest = {one: context for one, context in self.by_name.items() if one != name}
        return Contexts(by_name=rest, in_use=None if self.in_use == name else self.in_use)

    def using(self, name: str | None) -> Contexts:
        """Another one in use; None for this machine's folder."""
        if name is not None:
            self.named(name)
        return replace(self, in_use=name)


def checked_name(name: str) -> str:
    """A name for a context.

    Raises:
        UsageError: it is none.
    """
    if not is_name(name):
        message = f"{name!r} cannot be the name of a context: expected {NAME_PATTERN.pattern}"
        raise UsageError(message)
    return name


def checked_url(text: str) -> str:
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
        message = f"{_shown(text)!r} is no address of a server: write http://127.0.0.1:8421"
        raise UsageError(message)
    return text.rstrip("/")


def _shown(text: str) -> str:
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


def load(path: Path) -> Contexts:
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
        return Contexts()
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise ConfigurationError([problem]) from error
    if mode & _OTHERS:
        problem = (
            f"{path} holds keys and can be read by others: `chmod 600 {path}`, and make new keys"
        )
        raise ConfigurationError([problem])
    try:
        return _read(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UsageError) as error:
        problem = f"{path} does not hold contexts: remove it, and add them again"
        raise ConfigurationError([problem]) from error


def _read(document: Any) -> Contexts:
    if document["format"] != _FORMAT:
        raise ValueError
    found = {
        checked_name(name): Context(
            url=checked_url(one["url"]), key=one.get("key"), insecure=one.get("insecure") is True
        )
        for name, one in document["contexts"].items()
    }
    in_use = document.get("inUse")
    return Contexts(by_name=found, in_use=in_use if in_use in found else None)


def save(contexts: Contexts, path: Path) -> None:
    """Keep them, whole or not at all."""
    path = path.expanduser()
    document = {
        "format": _FORMAT,
        "inUse": contexts.in_use,
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

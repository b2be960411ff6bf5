"""Saved servers: their URLs and API keys, in one file of the user.

The file (the setting ``contexts_file``) contains keys: only its owner may read it, and a file that
others can read is refused.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from longshore.core.ids import NAME_PATTERN, is_name
from longshore.errors import ConfigurationError, UsageError

_OWNER_ONLY = 0o600
_OTHERS_MASK = 0o077
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """A server and its API key; without one, the environment or this machine provides the key."""

    url: str
    key: str | None = field(default=None, repr=False)
    insecure: bool = False  # the key may be sent over http


@dataclass(slots=True, kw_only=True)
class ServerContexts:
    """All saved servers, and the name of the current one."""

    by_name: dict[str, ServerContext] = field(default_factory=dict)
    current_name: str | None = None

    def get(self, name: str) -> ServerContext:
        """The context with this name.

        Raises:
            UsageError: there is none.
        """
        if name not in self.by_name:
            names = ", ".join(sorted(self.by_name)) or "none"
            raise UsageError(
                f"there is no context {name!r} (saved contexts: {names});"
                " see `longshore contexts add --help`"
            )
        return self.by_name[name]

    def current(self) -> ServerContext | None:
        return self.by_name.get(self.current_name) if self.current_name else None


def validate_name(name: str) -> str:
    """Check the name of a context, and return it.

    Raises:
        UsageError: it is not valid.
    """
    if not is_name(name):
        raise UsageError(f"invalid context name {name!r}: expected {NAME_PATTERN.pattern}")
    return name


def validate_url(text: str) -> str:
    """Check the URL of a server, and return it without a slash at its end.

    Raises:
        UsageError: it is not valid.
    """
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username or parts.password:
        # A password in the URL must not be printed.
        shown = text.split("@")[-1][:200]
        raise UsageError(f"invalid server URL {shown!r}. Example: http://127.0.0.1:8421")
    return text.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def load(path: Path) -> ServerContexts:
    """The saved servers; none if the file does not exist.

    Raises:
        ConfigurationError: others can read the file, or its content is not valid.
    """
    path = path.expanduser()
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ServerContexts()
    except OSError as error:
        raise ConfigurationError([f"{path} cannot be read: {error.strerror}"]) from error
    if mode & _OTHERS_MASK:
        problem = (
            f"{path} contains API keys and can be read by others:"
            f" run `chmod 600 {path}`, and replace the keys"
        )
        raise ConfigurationError([problem])
    try:
        document = json.loads(data)
        if document["format"] != _FORMAT:
            raise ValueError
        by_name = {
            validate_name(name): ServerContext(
                url=validate_url(entry["url"]),
                key=entry.get("key"),
                insecure=entry.get("insecure") is True,
            )
            for name, entry in document["contexts"].items()
        }
        current = document.get("current")
        return ServerContexts(by_name=by_name, current_name=current if current in by_name else None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UsageError) as error:
        problem = f"{path} is not a valid contexts file: delete it, and add the servers again"
        raise ConfigurationError([problem]) from error


def save(contexts: ServerContexts, path: Path) -> None:
    """Replace the file atomically."""
    path = path.expanduser()
    document = {
        "format": _FORMAT,
        "current": contexts.current_name,
        "contexts": {name: asdict(context) for name, context in contexts.by_name.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)

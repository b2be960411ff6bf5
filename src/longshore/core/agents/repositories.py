"""Which git repositories an agent may be given, and which of their commits.

An address goes to git on a command line, and git understands much more than addresses: options,
programs to run, files of this machine. So what is accepted is said here, form by form, and all else
is refused in words that say what to write instead. Nothing that may hold a secret is quoted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

URL_LIMIT_CHARACTERS: Final = 2_048
REF_LIMIT_BYTES: Final = 240
"""Less than what a file system takes as a name: git makes files of them."""
DEFAULT_REF: Final = "HEAD"
"""What a repository itself offers first, and what no ref at all means."""

CREDENTIALS_REMEDY: Final = (
    "a key or an ssh agent of the worker's user for ssh://, a git credential helper for https://"
)
_FORMS = "https://host/path, ssh://user@host/path or git@host:path"

_HOST = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"
_PORT = r"(?::(?P<port>[0-9]{1,5}))?"
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_WEB = re.compile(rf"(?P<transport>https?)://{_HOST}{_PORT}/.+")
_SSH = re.compile(rf"(?P<transport>ssh)://{_USER}@{_HOST}{_PORT}/.+")
# The colon that git takes for another transport, and what ssh might take for an option, are no
# beginning of a path.
_SCP = re.compile(rf"{_USER}@{_HOST}:[^:-].*")
_LOCAL = re.compile(r"(?:file://)?/.+")

_ODD = re.compile(r"[^\x21-\x7e]|\\|%(?:[01][0-9A-Fa-f]|7[Ff])|%(?![0-9A-Fa-f]{2})")
_USERINFO = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?P<info>[^/?#]*)@")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}):(?://|:)")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_LAST_PORT = 65_535

_COMMIT = re.compile(r"[0-9a-f]{40}", re.IGNORECASE)
_NOT_IN_REF = re.compile(r"[ ~^:?*\[\\]|\.\.|@\{|//|/\.|^[./-]|[./]$|\.lock(?:/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """An address that may be given to git."""

    url: str
    transport: str  # what git calls it, and the only one that it may use
    host: str | None  # None: this machine


def read_address(url: str, *, local: bool = False, hosts: Collection[str] | None = None) -> Address:
    """The address, if it is one that is accepted.

    Args:
        local: Whether repositories of this machine are accepted too: a full path, ``file:///path``
            and ``http://`` to a loopback address.
        hosts: The only hosts to accept, such as ``github.com`` or ``*.example.com``; None: any.

    Raises:
        ValueError: it is not accepted; the text says what to write instead.
    """
    if not url or len(url) > URL_LIMIT_CHARACTERS:
        message = f"expected an address of 1 to {URL_LIMIT_CHARACTERS:,} characters: {_FORMS}"
        raise ValueError(message)
    address = _on_this_machine(url) if local else None
    if address is None:
        _refuse_what_is_hidden(url)
        address = _remote(url, local=local)
    if address is None:
        raise ValueError(_refusal(url))
    if hosts is not None and address.host is not None and not _listed(address.host, hosts):
        message = f"repositories of {address.host} are not allowed here: the list of hosts has none"
        raise ValueError(message)
    return address


def checked_ref(ref: str) -> str:
    """The ref, if it can be a branch, a tag, a full name as ``refs/…``, or a whole commit id.

    Raises:
        ValueError: it cannot; the text says why.
    """
    size = len(ref.encode(errors="replace"))
    if not 1 <= size <= REF_LIMIT_BYTES or not ref.isprintable():
        message = f"expected a branch, a tag or a commit of 1 to {REF_LIMIT_BYTES} visible bytes"
        raise ValueError(message)
    if ref == "@" or _NOT_IN_REF.search(ref):
        message = (
            f"{ref!r} cannot be a branch or a tag: git allows none that begins with '-', '.' or"
            r" '/', ends with '.', '/' or '.lock', or has '..', '//', '/.', '@{', a space or one of"
            r" ~^:?*[\ in it; a commit is given by its whole id"
        )
        raise ValueError(message)
    return ref.lower() if is_commit(ref) else ref


def is_commit(ref: str) -> bool:
    """Whether it is the whole id of a commit, which stays what it is."""
    return _COMMIT.fullmatch(ref) is not None


def cache_name(url: str) -> str:
    """The name of the folder that keeps a copy of a repository; no two addresses have the same."""
    return hashlib.sha256(url.encode()).hexdigest()


def _refuse_what_is_hidden(url: str) -> None:
    found = _USERINFO.match(url)
    secret = found is not None and (":" in found["info"] or not url.startswith("ssh://"))
    if secret or "?" in url or "#" in url:
        message = (
            "an address must not carry a user name and a password, a token, or anything behind '?'"
            f" or '#': it is shown to many. Give the worker access instead: {CREDENTIALS_REMEDY}"
        )
        raise ValueError(message)
    if _ODD.search(url):
        message = "the address has a space, a control character, a backslash or a letter beyond "
        raise ValueError(message + "ASCII in it: write such letters as %XX")


def _remote(url: str, *, local: bool) -> Address | None:
    if found := _WEB.fullmatch(url) or _SSH.fullmatch(url):
        transport, host, port = found["transport"], found["host"].lower(), found["port"]
        if port is not None and not 1 <= int(port) <= _LAST_PORT:
            return None
        if transport == "http":
            near = local and host in _LOOPBACK
            return Address(url=url, transport=transport, host=None) if near else None
        return Address(url=url, transport=transport, host=host)
    if found := _SCP.fullmatch(url):
        return Address(url=url, transport="ssh", host=found["host"].lower())
    return None


def _on_this_machine(url: str) -> Address | None:
    if not url.isprintable() or not _LOCAL.fullmatch(url):
        return None
    return Address(url=url, transport="file", host=None)


def _refusal(url: str) -> str:
    if url.startswith(("/", "file:", "~", ".")):
        return (
            f"repositories on the worker's own disk are not allowed here: expected {_FORMS},"
            " or an installation that allows local ones and the repository's full path"
        )
    scheme = _SCHEME.match(url)
    if scheme is not None and scheme["scheme"] in ("http", "git"):
        return f"{scheme['scheme']}:// is neither encrypted nor checked: expected {_FORMS}"
    if scheme is not None and scheme["scheme"] not in ("https", "ssh"):
        return f"{scheme['scheme']}: is no transport that is allowed: expected {_FORMS}"
    return f"this is no address of a git repository: expected {_FORMS}"


def _listed(host: str, hosts: Collection[str]) -> bool:
    for listed in (one.lower() for one in hosts):
        if host == listed or (listed.startswith("*.") and host.endswith(listed[1:])):
            return True
    return False

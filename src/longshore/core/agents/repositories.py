"""Validates the addresses and refs of git repositories for agents.

An address is passed to git on a command line, and git accepts much more than addresses: options,
programs to run, local files. So only the forms listed here are accepted; the error for any other
names the accepted forms. Nothing that may contain a secret is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

URL_LIMIT_CHARACTERS: Final = 2_048
REF_LIMIT_BYTES: Final = 240
"""Below the file name limit of file systems: git creates files for refs."""
DEFAULT_REF: Final = "HEAD"
"""The default branch of a repository, used when no ref is given."""

CREDENTIALS_REMEDY: Final = "use an ssh:// address and a key or an ssh agent of the worker's user"
_FORMS = "https://host/path, ssh://user@host/path or git@host:path"

_HOST = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"
_PORT = r"(?::(?P<port>[0-9]{1,5}))?"
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_WEB = re.compile(rf"(?P<transport>https?)://{_HOST}{_PORT}/.+")
_SSH = re.compile(rf"(?P<transport>ssh)://{_USER}@{_HOST}{_PORT}/.+")
# A path must not start with a colon, which git reads as another transport, or with a dash, which
# ssh might read as an option.
_SCP = re.compile(rf"{_USER}@{_HOST}:[^:-].*")
_LOCAL = re.compile(r"(?:file://)?/.+")

_INVALID_CHARACTERS = re.compile(r"[^\x21-\x7e]|\\|%(?:[01][0-9A-Fa-f]|7[Ff])|%(?![0-9A-Fa-f]{2})")
_USERINFO = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?P<info>[^/?#]*)@")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}):(?://|:)")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_LAST_PORT = 65_535

_COMMIT = re.compile(r"[0-9a-f]{40}", re.IGNORECASE)
_NOT_IN_REF = re.compile(r"[ ~^:?*\[\\]|\.\.|@\{|//|/\.|^[./-]|[./]$|\.lock(?:/|$)")


def transport_of(url: str, *, local: bool = False, hosts: Collection[str] = ()) -> str:
    """Returns git's name of the only transport that it may use for an address.

    Args:
        local: Whether repositories of this machine are accepted too: a full path, ``file:///path``
            and ``http://`` to a loopback address.
        hosts: The only hosts, in lower case, of other repositories; empty: any host.

    Raises:
        ValueError: the address is not accepted; the message names the accepted forms.
    """
    if not url or len(url) > URL_LIMIT_CHARACTERS:
        message = f"expected an address of 1 to {URL_LIMIT_CHARACTERS:,} characters: {_FORMS}"
        raise ValueError(message)
    if local and url.isprintable() and _LOCAL.fullmatch(url):
        return "file"
    _reject_secrets(url)
    if (transport := _remote_transport(url, local=local)) is None:
        raise ValueError(_rejection_text(url))
    match = _WEB.fullmatch(url) or _SSH.fullmatch(url) or _SCP.fullmatch(url)
    if hosts and (match is None or match["host"].lower() not in hosts):
        allowed = ", ".join(sorted(hosts))
        raise ValueError(
            f"the host of the repository is not allowed; agent.repository_hosts has {allowed}"
        )
    return transport


def validate_ref(ref: str) -> str:
    """Returns the ref: a branch, a tag, a full name such as ``refs/…``, or a full commit id.

    Raises:
        ValueError: it is not valid; the message explains why.
    """
    size = len(ref.encode(errors="replace"))
    if not 1 <= size <= REF_LIMIT_BYTES or not ref.isprintable():
        message = f"expected a branch, a tag or a commit of 1 to {REF_LIMIT_BYTES} visible bytes"
        raise ValueError(message)
    if ref == "@" or _NOT_IN_REF.search(ref):
        raise ValueError(
            f"{ref!r} cannot be a branch or a tag: git allows none that begins with '-', '.' or"
            r" '/', ends with '.', '/' or '.lock', or has '..', '//', '/.', '@{', a space or one of"
            r" ~^:?*[\ in it; a commit is given by its whole id"
        )
    return ref.lower() if is_commit(ref) else ref


def is_commit(ref: str) -> bool:
    """Whether it is a full commit id, which never moves."""
    return _COMMIT.fullmatch(ref) is not None


def cache_name(url: str) -> str:
    """Returns the folder name of a repository's mirror, unique for each address."""
    import hashlib  # loaded here, as OpenSSL makes every fork dearer

    return hashlib.sha256(url.encode()).hexdigest()


def _reject_secrets(url: str) -> None:
    match = _USERINFO.match(url)
    secret = match is not None and (":" in match["info"] or not url.startswith("ssh://"))
    if secret or "?" in url or "#" in url:
        raise ValueError(
            "an address must not carry a user name and a password, a token, or anything behind '?'"
            f" or '#': it is shown to many. Give the worker access instead: {CREDENTIALS_REMEDY}"
        )
    if _INVALID_CHARACTERS.search(url):
        message = "the address has a space, a control character, a backslash or a letter beyond "
        raise ValueError(message + "ASCII in it: write such letters as %XX")


def _remote_transport(url: str, *, local: bool) -> str | None:
    if match := _WEB.fullmatch(url) or _SSH.fullmatch(url):
        transport, port = match["transport"], match["port"]
        if port is not None and not 1 <= int(port) <= _LAST_PORT:
            return None
        if transport == "http" and not (local and match["host"].lower() in _LOOPBACK):
            return None
        return transport
    return "ssh" if _SCP.fullmatch(url) else None


def _rejection_text(url: str) -> str:
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

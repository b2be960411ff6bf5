"""Credentials: what is shown to the model's API, and never to the agent.

The agent's command line gets a token of one attempt in place of it. Whatever comes back passes a
``Mask``, which puts that token where an upstream has repeated the real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from longshore.errors import ConfigurationError

API_KEY: Final = "ANTHROPIC_API_KEY"
AUTH_TOKEN: Final = "ANTHROPIC_AUTH_TOKEN"  # noqa: S105 - the name of a variable
OAUTH_TOKEN: Final = "CLAUDE_CODE_OAUTH_TOKEN"  # noqa: S105
_SHORTEST_SECRET: Final = 12
VARIABLES: Final = (API_KEY, AUTH_TOKEN, OAUTH_TOKEN)
"""Where the command line looks for a credential."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key of the API, sent as ``x-api-key``."""

    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        _check(self.secret, self.variable)

    @property
    def variable(self) -> str:
        """By which variable the command line takes it."""
        return API_KEY

    @property
    def headers(self) -> dict[str, str]:
        """How it is shown."""
        return {"x-api-key": self.secret}


@dataclass(frozen=True, slots=True)
class Bearer:
    """A token, sent as ``authorization: Bearer``; a subscription's, or one of another gateway."""

    secret: str = field(repr=False)
    subscription: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check(self.secret, self.variable)

    @property
    def variable(self) -> str:
        """By which variable the command line takes it, and so how it behaves."""
        return OAUTH_TOKEN if self.subscription else AUTH_TOKEN

    @property
    def headers(self) -> dict[str, str]:
        """How it is shown."""
        return {"authorization": f"Bearer {self.secret}"}


Credential = ApiKey | Bearer


def _check(secret: str, variable: str) -> None:
    # In a header it would say something else, and the message of whoever notices would quote it.
    if not secret or not all("!" <= character <= "~" for character in secret):
        problem = f"{variable} must be visible ASCII characters without spaces, and is not"
        raise ConfigurationError((problem,))


class Mask:
    """Replaces one text by another in bytes that come in pieces, and delays hardly any of them.

    Only the end of a piece that may be the beginning of the secret waits for the next one; no event
    of a stream ends so, since a secret has no line breaks. A very short one, as is given to a proxy
    that wants none, is no secret, and stands in ordinary words: it is left alone.
    """

    def __init__(self, secret: str, instead: str) -> None:
        self._hides = len(secret) >= _SHORTEST_SECRET
        self._secret, self._instead = secret.encode(), instead.encode()
        self._held = b""

    def text(self, text: str) -> str:
        """A text as it may be seen."""
        if not self._hides:
            return text
        return text.replace(self._secret.decode(), self._instead.decode())

    def feed(self, piece: bytes) -> bytes:
        """What of all that has come may be seen now."""
        if not self._hides:
            return piece
        data = (self._held + piece).replace(self._secret, self._instead)
        held = self._beginning_at_the_end_of(data)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def end(self) -> bytes:
        """What was held back, as nothing follows it."""
        held, self._held = self._held, b""
        return held

    def _beginning_at_the_end_of(self, data: bytes) -> int:
        longest = min(len(self._secret) - 1, len(data))
        for length in range(longest, 0, -1):
            if data.endswith(self._secret[:length]):
                return length
        return 0

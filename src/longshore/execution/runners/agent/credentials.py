"""Credentials for the model's API, which the agent never sees.

The agent's CLI gets a token that is valid for one attempt instead. Every response passes a
``SecretMask``, which replaces the credential by that token where the upstream repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from longshore.errors import ConfigurationError

API_KEY: Final = "ANTHROPIC_API_KEY"
AUTH_TOKEN: Final = "ANTHROPIC_AUTH_TOKEN"  # noqa: S105 - the name of a variable
OAUTH_TOKEN: Final = "CLAUDE_CODE_OAUTH_TOKEN"  # noqa: S105
_MIN_SECRET_LENGTH: Final = 12
CREDENTIAL_VARIABLES: Final = (API_KEY, AUTH_TOKEN, OAUTH_TOKEN)
"""The variables from which the CLI reads a credential."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential of the model's API: an API key, or a token of a subscription or a gateway.

    Args:
        variable: The variable from which the CLI reads it; it also determines how the CLI behaves.
    """

    secret: str = field(repr=False)
    variable: str = API_KEY

    def __post_init__(self) -> None:
        # Other characters would break the header, and the error message would quote the secret.
        if not self.secret or not all("!" <= character <= "~" for character in self.secret):
            problem = f"{self.variable} must be visible ASCII characters without spaces, and is not"
            raise ConfigurationError((problem,))

    @property
    def headers(self) -> dict[str, str]:
        """The request headers that carry the credential."""
        if self.variable == API_KEY:
            return {"x-api-key": self.secret}
        return {"authorization": f"Bearer {self.secret}"}


class SecretMask:
    """Replaces a secret in a stream of chunks with minimal delay.

    Only the end of a chunk that may be the beginning of the secret waits for the next chunk; a
    stream's event never ends like that, since a secret has no line breaks. A very short value, such
    as a dummy for a proxy that needs none, is not secret and may occur in ordinary text: it is not
    replaced.
    """

    def __init__(self, secret: str, replacement: str) -> None:
        self._enabled = len(secret) >= _MIN_SECRET_LENGTH
        self._secret, self._replacement = secret.encode(), replacement.encode()
        self._pending = b""

    def mask_text(self, text: str) -> str:
        """Returns the text with the secret replaced."""
        if not self._enabled:
            return text
        return text.replace(self._secret.decode(), self._replacement.decode())

    def feed(self, chunk: bytes) -> bytes:
        """Returns the bytes that can be passed on now, with the secret replaced."""
        if not self._enabled:
            return chunk
        data = (self._pending + chunk).replace(self._secret, self._replacement)
        pending_length = self._partial_match_length(data)
        self._pending = data[len(data) - pending_length :]
        return data[: len(data) - pending_length]

    def end(self) -> bytes:
        """Returns the pending bytes, at the end of the stream."""
        pending, self._pending = self._pending, b""
        return pending

    def _partial_match_length(self, data: bytes) -> int:
        lengths = range(len(self._secret) - 1, 0, -1)
        return next((length for length in lengths if data.endswith(self._secret[:length])), 0)

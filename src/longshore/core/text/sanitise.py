"""Sanitisers: what may go into a prompt, and what may come out in errors, logs and events.

On the way out, secrets are masked: what has the shape of a key, what stands behind a name like
``password``, and what is long and looks drawn by chance. Hashes in hex, UUIDs and our own ids are
what people search logs for, and stay. Where the two cannot be told apart the text is masked: a
line that says too little is a nuisance, a leaked key is not. On the way in, characters that a
reader cannot see but a model can are removed.

Both ways are idempotent, so a text that passes several layers is not eaten away. Both take linear
time, because they run on what attackers wrote too: a quantifier is bounded, possessive, or cannot
meet its own end again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from longshore.core.text.secrets import MASK, RULES, SECRET_NAME

CUT_SUFFIX = "… [cut]"
PROMPT_LIMIT_CHARACTERS = 100_000
SCAN_LIMIT_CHARACTERS = 65_536
"""More of an error's text than this is never looked at: what is kept of it is far shorter."""
MASK_DEPTH_LIMIT = 64
"""Deeper than any message of ours; what lies below is masked rather than followed."""

# A rule may uncover what an earlier one could not see: without the slash in it, a password in a
# URL is plain. A fixed number, so that no text can make it go on for ever.
_MORE_ROUNDS = 2
# Longer than nearly every secret, so that one cut in two is dropped as a whole.
_RAGGED_END_CHARACTERS = 1024

_LINE_ENDS = re.compile("\r\n|[\r\x85\u2028\u2029]")
_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and newline
    "\u00ad\u034f\u180e\u200b-\u200d\u2060-\u2064\ufeff"  # no width
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of reading
    "\ufff9-\ufffb\ufe00-\ufe0d\U000e0000-\U000e01ef"  # tags and selectors: text within text
    "\ud800-\udfff"  # halves of a character, which no store can write
    "]"
)


def mask_secrets(text: str) -> str:
    """The text with each secret in it replaced by ``MASK``."""
    masked = _mask_round(text)
    if masked == text:
        return text
    for _ in range(_MORE_ROUNDS):
        masked = _mask_round(masked)
    return masked


def mask_mapping(value: Any) -> Any:
    """A JSON-like value with what its keys call a secret, and secrets in its texts, masked.

    None, truth values and empty texts stay, also behind such a key: that a
    password is missing is often the very thing to find out.
    """
    return _mask_value(value, 0)


def safe_excerpt(text: str, *, limit: int) -> str:
    """As much of a text as an error, a log line or an event may carry: masked, visible, short."""
    whole = len(text) <= SCAN_LIMIT_CHARACTERS
    examined = text if whole else _without_ragged_end(text[:SCAN_LIMIT_CHARACTERS])
    masked = mask_secrets(_only_visible(examined))
    return _cut(masked if whole else masked + CUT_SUFFIX, limit)


def sanitise_prompt_input(text: str, *, limit: int = PROMPT_LIMIT_CHARACTERS) -> str:
    """Text from outside as it may stand in a prompt: nothing unseen in it, and not too long."""
    return _cut(_only_visible(text), limit)


def _mask_round(text: str) -> str:
    lowered = text.lower()
    for rule in RULES:
        text = rule.mask(text, lowered)
    return text


def _only_visible(text: str) -> str:
    return _INVISIBLE.sub("", _LINE_ENDS.sub("\n", text))


def _cut(text: str, limit: int) -> str:
    if limit < len(CUT_SUFFIX):
        message = f"limit must be at least {len(CUT_SUFFIX)} characters, not {limit}"
        raise ValueError(message)
    if len(text) <= limit:
        return text
    return text[: limit - len(CUT_SUFFIX)] + CUT_SUFFIX


def _without_ragged_end(text: str) -> str:
    """The text up to a place where no secret can have been cut in two."""
    sure, ragged = text[:-_RAGGED_END_CHARACTERS], text[-_RAGGED_END_CHARACTERS:]
    words = ragged.rsplit(None, 1)
    return sure + words[0] if len(words) > 1 else sure


def _mask_value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return mask_secrets(value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth >= MASK_DEPTH_LIMIT:
        return MASK
    if isinstance(value, Mapping):
        return {name: _mask_entry(name, item, depth + 1) for name, item in value.items()}
    items = [_mask_value(item, depth + 1) for item in value]
    return items if isinstance(value, list) else tuple(items)


def _mask_entry(name: object, value: Any, depth: int) -> Any:
    secret = isinstance(name, str) and SECRET_NAME.search(name) is not None
    if secret and value not in (None, "") and not isinstance(value, bool):
        return MASK
    return _mask_value(value, depth)

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MASK = "[masked]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRule:
    """One shape, and what takes its place."""

    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str] = rf"\g<keep>{MASK}"
    # Without one of these (in lower case) there is no match. Looking for them costs a hundredth
    # of the pattern, and most texts have none. Empty: always search.
    hints: tuple[str, ...] = ()

    def mask(self, text: str, lowered: str) -> str:
        """The text with every match replaced; ``lowered`` is the same text in lower case."""
        if self.hints and not any(hint in lowered for hint in self.hints):
            return text
        return self.pattern.sub(self.replacement, text)


# What a secret is called, at the end of a longer name too (`DB_PASSWORD`, `clientSecret`), but not
# at the beginning of one (`max_tokens`, `token_count`, `secret_arn`).
_NAMES = (
    r"(?:pass(?:words?|wd|phrase|code)|secrets?|token|credentials?|authorization|cookies?"
    # A shell's working directory is called like a password.
    r"|pwd(?![\"']?[:=]{1,2}[\"' ]?/)"
    r"|(?:api|access|secret|private|account|signing|encryption)[ _-]?keys?(?:[_-]?id)?)"
)
_NAME_HINTS = ("pass", "pwd", "secret", "token", "credential", "authorization", "cookie", "key")
SECRET_NAME = re.compile(rf"{_NAMES}\Z", re.IGNORECASE)

# What follows such a name in a sentence *about* it ("token: expired"), names the kind of what comes
# next, or is masked already.
_NO_VALUE = (
    r"(?!(?:null|none|nil|true|false|undefined|expired|expected|invalid|missing|required|empty"
    r"|denied|failed|is|was|must|not|and|or|bearer|basic|token|apikey|digest|negotiate|aws4-hmac-sha256"
    r"|\[masked\])(?:[\s\"'<>&;,)}\].\\]|\Z))"
)
# Commas and brackets may be part of a password; at its very end they are not.
_BARE = rf"{_NO_VALUE}[^\s\"'<>&;]*[^\s\"'<>&;,)}}\].\\]"
# Text in quotes ends with the quote it began with, which may be escaped as part of a longer text;
# where that is missing (the text was cut), with the line.
_OPENING = r"(?:[\w.]{0,40}\()?[bru]{0,2}(?:(?P<escaped>\\{1,3}[\"'])|(?P<quote>[\"']))"
# Not possessive: before Python 3.11.5 a possessive group overlooks what it looks ahead for.
_IN_ESCAPED_QUOTES = r"(?:(?!(?<!\\)(?P=escaped))[^\r\n])*"
_IN_QUOTES = r"(?:\\[^\r\n]|(?!(?P=quote))[^\r\n\\])*"
_VALUE = rf"(?(escaped){_IN_ESCAPED_QUOTES}|(?(quote){_IN_QUOTES}|{_BARE}))"
_BETWEEN = r"\\{0,3}[\"']?\]?(?:[ \t]{0,4}(?:=>|:=|==?|:)[ \t]{0,4}|>)"


def _rule(pattern: str, *hints: str) -> SecretRule:
    return SecretRule(pattern=re.compile(pattern, re.IGNORECASE), hints=hints)


_PRIVATE_KEY = SecretRule(
    pattern=re.compile(
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
        r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
        re.DOTALL,
    ),
    replacement=MASK,
    hints=("private key",),
)
_HEADER_WITH_SCHEME = _rule(
    r"(?P<keep>authorization\\{0,3}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}[\"']?"
    r"(?:(?:bearer|basic|token|apikey|negotiate)[ \t]{1,4}(?=[^\s\"',;\\])"
    r"|(?P<long>(?:digest|aws4-hmac-sha256)[ \t]{1,4}(?=[^\r\n]))))"
    r"(?(long)[^\r\n]++|[^\s\"',;\\]++)",
    "authorization",
)
_SCHEME_ALONE = _rule(
    # "Bearer authentication failed" names no token: one has a digit, or is no word at all.
    r"(?P<keep>\b(?:bearer|basic)[ \t]{1,4})"
    r"(?:(?=[\w.~+/=-]{0,256}[\d=])[\w.~+/=-]{8,}+|[\w.~+/=-]{24,}+)",
    "bearer",
    "basic",
)
_COOKIES = _rule(
    r"(?P<keep>\b(?:set-)?cookie:[ \t]{0,4})(?=[^\s\"'])[^\r\n\"']++",
    "cookie:",
)
_PAIR = _rule(rf"(?P<keep>{_NAMES}{_BETWEEN}(?:{_OPENING})?){_VALUE}", *_NAME_HINTS)
_FLAG = _rule(
    rf"(?P<keep>--(?:[a-z]{{1,12}}-){{0,3}}{_NAMES}[\"']?,?[ \t]{{1,3}}(?P<quote>[\"'])?)"
    rf"(?!-)(?(quote)[^\"'\r\n]++|{_NO_VALUE}[^\s\"']++)",
    "--",
)
_SIGNED_QUERY = _rule(
    r"(?P<keep>(?:[?&;]sig|signature|x-(?:amz|goog)-credential)=)[^\s\"'<>&]++",
    "sig=",
    "signature=",
    "credential=",
)
_URL_WITH_PASSWORD = _rule(
    # A slash in a password is a mistake that happens; a port and a path are not a password.
    r"(?P<keep>://[^\s/?:@\"'<>]{0,128}:)(?:[^\s/?\"'<>]{1,512}|(?!\d{1,5}[/?])"
    r"[^\s:@\"'<>]{1,256}+(?::[^\s:@\"'<>]{1,128}+)?)"
    r"(?=@)",
    "://",
)
_URL_WITH_TOKEN = _rule(r"(?P<keep>://)[^\s/?:@\"'<>\[\]]{20,512}(?=@)", "://")
_SLACK_HOOK = _rule(r"(?P<keep>hooks\.slack\.com/(?:services|workflows)/)[\w/-]++", "slack")
_VENDOR_KEY = SecretRule(
    pattern=re.compile(
        r"(?<![A-Za-z0-9])(?:"
        # A digit tells a key from a name such as `sk-learn-pipeline-runner`.
        r"sk-(?=[A-Za-z_-]{0,64}\d)[\w-]{16,}+"
        r"|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}(?![A-Za-z0-9])"
        r"|(?:gh[pousr]_|github_pat_|npm_|hf_|gsk_|dop_v1_)\w{20,}+"
        r"|(?:glpat-|pypi-|GOCSPX-|ya29\.|xai-)[\w-]{16,}+"
        r"|(?:xox[abceoprs]|xapp)-[\w-]{8,}+"
        r"|AIza[\w-]{30,}+"
        r"|(?:[srp]k_(?:live|test)|whsec)_\w{10,}+"
        r"|SG\.[\w-]{16,}+\.[\w-]{16,}+"
        r"|eyJ[\w-]{8,}+(?:\.[\w-]*+){1,4}"
        r")",
        re.ASCII,
    ),
    replacement=MASK,
)

# Text drawn by chance is known by its breaks: a digit beside a letter, upper case after lower. It
# has 13 in 32 characters, names made of words up to 7 (`RetryPolicyVersion2`): the first letter of
# a word is no break. Of a thousand drawn texts this misses about ten.
_WINDOW_CHARACTERS = 32
_RANDOM_BREAKS = 8
_BREAK = re.compile(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[0-9]|(?<=[0-9])[A-Za-z]")
_ORDINARY = re.compile(r"(?:sha(?:1|256|384|512)-.*|job-[a-z2-7]{24}(?:_[\w-]*)?)", re.ASCII)


def _mask_random(match: re.Match[str]) -> str:
    run = match[0]
    return MASK if _looks_random(run) and not _ORDINARY.fullmatch(run) else run


def _looks_random(run: str) -> bool:
    last = len(run) - _WINDOW_CHARACTERS
    starts = (*range(0, last, _WINDOW_CHARACTERS // 2), last)
    return any(_is_random(run[start : start + _WINDOW_CHARACTERS]) for start in starts)


def _is_random(window: str) -> bool:
    if len(_BREAK.findall(window)) < _RANDOM_BREAKS:
        return False
    # One case and digits is how ids are written, hex in whatever case is a hash.
    one_case = window in (window.lower(), window.upper())
    return not one_case and bool(window.strip("0123456789abcdefABCDEF-"))


_RANDOM_TEXT = SecretRule(
    pattern=re.compile(rf"[A-Za-z0-9+/_-]{{{_WINDOW_CHARACTERS},}}+={{0,2}}"),
    replacement=_mask_random,
)

RULES: tuple[SecretRule, ...] = (
    _PRIVATE_KEY,
    _HEADER_WITH_SCHEME,
    _COOKIES,
    _PAIR,
    _FLAG,
    _SIGNED_QUERY,
    _URL_WITH_PASSWORD,
    _URL_WITH_TOKEN,
    _SLACK_HOOK,
    _SCHEME_ALONE,
    _VENDOR_KEY,
    _RANDOM_TEXT,
)

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

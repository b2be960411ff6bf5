"""Sanitisers: for prompts, and for the texts of errors, logs and events.

In errors, logs and events, secrets are masked: texts with the form of a key, values after a name
such as ``password``, and long random texts. Hexadecimal hashes, UUIDs and the ids of jobs and tasks
are not masked, because people search for them. In doubt a text is masked. The order of the rules
matters: a value after a name is masked as a whole, so these rules come before those for keys;
the rule for random text is a guess and comes last. Only the secret is replaced, and not its name,
host or quotes.

In prompts, characters that a reader cannot see are removed.

All sanitisers are idempotent, and take linear time also on hostile texts: every quantifier is
bounded or possessive, or cannot match its own end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MASK = "[masked]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRule:
    """The pattern of a kind of secret, and its replacement."""

    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str] = rf"\g<keep>{MASK}"
    # A text without one of these (in lower case) has no match. The search for them takes a
    # hundredth of the pattern's time. Empty: always use the pattern.
    hints: tuple[str, ...] = ()

    def mask(self, text: str, lowered: str) -> str:
        """Returns the text with every match replaced; ``lowered`` is the text in lower case."""
        if self.hints and not any(hint in lowered for hint in self.hints):
            return text
        return self.pattern.sub(self.replacement, text)


# Names of secrets, also at the end of a longer name (`DB_PASSWORD`, `clientSecret`), but not at its
# beginning (`token_count`, `secret_arn`).
_NAMES = (
    r"(?:pass(?:words?|wd|phrase|code)|secrets?|token|credentials?|authorization|cookies?"
    # `pwd` is also the working directory of a shell.
    r"|pwd(?![\"']?[:=]{1,2}[\"' ]?/)"
    r"|(?:api|access|secret|private|account|signing|encryption)[ _-]?keys?(?:[_-]?id)?)"
)
_NAME_HINTS = ("pass", "pwd", "secret", "token", "credential", "authorization", "cookie", "key")
SECRET_NAME = re.compile(rf"{_NAMES}\Z", re.IGNORECASE)

# Words after such a name that are not a secret: of a sentence about it ("token: expired"), the kind
# of the value that follows, or a mask.
_NO_VALUE = (
    r"(?!(?:null|none|nil|true|false|undefined|expired|expected|invalid|missing|required|empty"
    r"|denied|failed|is|was|must|not|and|or|bearer|basic|token|apikey|digest|negotiate|aws4-hmac-sha256"
    r"|\[masked\])(?:[\s\"'<>&;,)}\].\\]|\Z))"
)
# Commas and brackets may be part of a password, but not its end.
_BARE = rf"{_NO_VALUE}[^\s\"'<>&;]*[^\s\"'<>&;,)}}\].\\]"
# Quoted text ends with its opening quote, which may be escaped inside a longer text; if the quote
# is missing because the text was truncated, it ends with the line.
_OPENING = r"(?:[\w.]{0,40}\()?[bru]{0,2}(?:(?P<escaped>\\{1,3}[\"'])|(?P<quote>[\"']))"
# Not possessive: before Python 3.11.5 a possessive group overlooks what it looks ahead for.
_IN_ESCAPED_QUOTES = r"(?:(?!(?<!\\)(?P=escaped))[^\r\n])*"
_IN_QUOTES = r"(?:\\[^\r\n]|(?!(?P=quote))[^\r\n\\])*"
_VALUE = rf"(?(escaped){_IN_ESCAPED_QUOTES}|(?(quote){_IN_QUOTES}|{_BARE}))"
_BETWEEN = r"\\{0,3}[\"']?\]?(?:[ \t]{0,4}(?:=>|:=|==?|:)[ \t]{0,4}|>)"


def _rule(pattern: str, *hints: str) -> SecretRule:
    return SecretRule(pattern=re.compile(pattern, re.IGNORECASE), hints=hints)


# Random text has many breaks: a digit beside a letter, upper case after lower case. It has about 13
# in 32 characters, and names of words have up to 7 (`RetryPolicyVersion2`). This rule misses about
# ten of a thousand random texts.
_WINDOW_CHARACTERS = 32
_RANDOM_BREAKS = 8
_BREAK = re.compile(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[0-9]|(?<=[0-9])[A-Za-z]")
_ORDINARY = re.compile(
    r"(?:sha(?:1|256|384|512)-.*|(?:job|req)-[0-9a-v]{24}(?:_[\w-]*)?)", re.ASCII
)


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
    # Ids have one case and digits, and hashes are hexadecimal.
    one_case = window in (window.lower(), window.upper())
    return not one_case and bool(window.strip("0123456789abcdefABCDEF-"))


RULES: tuple[SecretRule, ...] = (
    # A private key in PEM form.
    SecretRule(
        pattern=re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
            re.DOTALL,
        ),
        replacement=MASK,
        hints=("private key",),
    ),
    # The header Authorization with its scheme.
    _rule(
        r"(?P<keep>authorization\\{0,3}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}[\"']?"
        r"(?:(?:bearer|basic|token|apikey|negotiate)[ \t]{1,4}(?=[^\s\"',;\\])"
        r"|(?P<long>(?:digest|aws4-hmac-sha256)[ \t]{1,4}(?=[^\r\n]))))"
        r"(?(long)[^\r\n]++|[^\s\"',;\\]++)",
        "authorization",
    ),
    # The headers Cookie and Set-Cookie.
    _rule(
        r"(?P<keep>\b(?:set-)?cookie:[ \t]{0,4})(?=[^\s\"'])[^\r\n\"']++",
        "cookie:",
    ),
    # A name and a value, in any notation.
    _rule(rf"(?P<keep>{_NAMES}{_BETWEEN}(?:{_OPENING})?){_VALUE}", *_NAME_HINTS),
    # An option of a command line.
    _rule(
        rf"(?P<keep>--(?:[a-z]{{1,12}}-){{0,3}}{_NAMES}[\"']?,?[ \t]{{1,3}}(?P<quote>[\"'])?)"
        rf"(?!-)(?(quote)[^\"'\r\n]++|{_NO_VALUE}[^\s\"']++)",
        "--",
    ),
    # The signature in a signed URL.
    _rule(
        r"(?P<keep>(?:[?&;]sig|signature|x-(?:amz|goog)-credential)=)[^\s\"'<>&]++",
        "sig=",
        "signature=",
        "credential=",
    ),
    # A URL with a password.
    _rule(
        # A password may contain an unescaped slash; a port and a path are not a password.
        r"(?P<keep>://[^\s/?:@\"'<>]{0,128}:)(?:[^\s/?\"'<>]{1,512}|(?!\d{1,5}[/?])"
        r"[^\s:@\"'<>]{1,256}+(?::[^\s:@\"'<>]{1,128}+)?)"
        r"(?=@)",
        "://",
    ),
    # A URL with a token in place of a user.
    _rule(r"(?P<keep>://)[^\s/?:@\"'<>\[\]]{20,512}(?=@)", "://"),
    # A webhook of Slack.
    _rule(r"(?P<keep>hooks\.slack\.com/(?:services|workflows)/)[\w/-]++", "slack"),
    # A scheme without its header.
    _rule(
        # A token has a digit or is long, unlike the words of "Bearer authentication failed".
        r"(?P<keep>\b(?:bearer|basic)[ \t]{1,4})"
        r"(?:(?=[\w.~+/=-]{0,256}[\d=])[\w.~+/=-]{8,}+|[\w.~+/=-]{24,}+)",
        "bearer",
        "basic",
    ),
    # Keys with the prefix of a vendor.
    SecretRule(
        pattern=re.compile(
            r"(?<![A-Za-z0-9])(?:"
            # A key has a digit, unlike a name such as `sk-learn-pipeline-runner`.
            r"sk-(?=[A-Za-z_-]{0,64}\d)[\w-]{16,}+"
            r"|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}(?![A-Za-z0-9])"
            r"|(?:gh[pousr]_|github_pat_|npm_|hf_|gsk_|dop_v1_)\w{20,}+"
            r"|(?:lsk_|glpat-|pypi-|GOCSPX-|ya29\.|xai-)[\w-]{16,}+"
            r"|(?:xox[abceoprs]|xapp)-[\w-]{8,}+"
            r"|AIza[\w-]{30,}+"
            r"|(?:[srp]k_(?:live|test)|whsec)_\w{10,}+"
            r"|SG\.[\w-]{16,}+\.[\w-]{16,}+"
            r"|eyJ[\w-]{8,}+(?:\.[\w-]*+){1,4}"
            r")",
            re.ASCII,
        ),
        replacement=MASK,
    ),
    # Random text.
    SecretRule(
        pattern=re.compile(rf"[A-Za-z0-9+/_-]{{{_WINDOW_CHARACTERS},}}+={{0,2}}"),
        replacement=_mask_random,
    ),
)

CUT_SUFFIX = "… [cut]"
PROMPT_LIMIT_CHARACTERS = 100_000
SCAN_LIMIT_CHARACTERS = 65_536
"""The part of a text that is examined; excerpts are much shorter."""
MASK_DEPTH_LIMIT = 64
"""Values below this depth are masked without a search."""

# A rule may reveal a match of an earlier rule. A fixed number of rounds, so that no text causes an
# endless loop.
_MORE_ROUNDS = 2
# Longer than nearly every secret, so that a secret at the end is dropped as a whole.
_UNSAFE_END_CHARACTERS = 1024

_LINE_ENDS = re.compile("\r\n|[\r\x85\u2028\u2029]")
_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline
    "\u00ad\u034f\u180e\u200b-\u200d\u2060-\u2064\ufeff"  # zero width
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of reading
    "\ufff9-\ufffb\ufe00-\ufe0d\U000e0000-\U000e01ef"  # tags and selectors: hidden text
    "\ud800-\udfff"  # lone surrogates, which no store can write
    "]"
)


def mask_secrets(text: str) -> str:
    """Returns the text with each secret replaced by ``MASK``."""
    masked = _mask_round(text)
    if masked == text:
        return text
    for _ in range(_MORE_ROUNDS):
        masked = _mask_round(masked)
    return masked


def mask_mapping(value: Any) -> Any:
    """Returns a JSON-like value with secrets in its texts and values of secret names masked.

    None, booleans and empty texts are not masked: a missing password is useful to see.
    """
    return _mask_value(value, 0)


def safe_excerpt(text: str, *, limit: int) -> str:
    """Returns a text as an error, a log line or an event may contain it: masked and truncated."""
    whole = len(text) <= SCAN_LIMIT_CHARACTERS
    examined = text if whole else _without_unsafe_end(text[:SCAN_LIMIT_CHARACTERS])
    masked = mask_secrets(_only_visible(examined))
    return _cut(masked if whole else masked + CUT_SUFFIX, limit)


def sanitise_prompt_input(text: str, *, limit: int = PROMPT_LIMIT_CHARACTERS) -> str:
    """Returns a text as a prompt may contain it: without invisible characters, and truncated."""
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
        raise ValueError(f"limit must be at least {len(CUT_SUFFIX)} characters, not {limit}")
    if len(text) <= limit:
        return text
    return text[: limit - len(CUT_SUFFIX)] + CUT_SUFFIX


def _without_unsafe_end(text: str) -> str:
    """Returns the text up to a position that is not inside a secret."""
    start, end = text[:-_UNSAFE_END_CHARACTERS], text[-_UNSAFE_END_CHARACTERS:]
    words = end.rsplit(None, 1)
    return start + words[0] if len(words) > 1 else start


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

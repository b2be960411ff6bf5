"""The prices of model responses, by their tokens.

The prices and the rules are those of the agent's CLI (2.1.325), measured with responses of known
size: Longshore computes the same cost as the CLI, to the last bit of the sum. The CLI uses the
price of the *requested* model, not of the model that the response names, and the price of its
default model for a model that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

_MILLION = 1e6
# For responses that are computed in the United States on request; searches cost the same.
_IN_THE_US = 1.1
_WEB_SEARCH_USD = 0.01
# The prices of output and of cache writes, as multiples of the input price.
_OUTPUT, _WRITE, _WRITE_1H = 5, 1.25, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """The tokens of one or more responses, by the kinds that are billed."""

    input: int = 0  # without cache reads and writes
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0  # for five minutes
    cache_write_1h: int = 0
    web_searches: int = 0
    fast: bool = False
    in_the_us: bool = False

    @property
    def prompt(self) -> int:
        """All input tokens, including cache reads and writes."""
        return self.input + self.cache_read + self.cache_creation

    @property
    def cache_creation(self) -> int:
        """All cache writes, of any lifetime."""
        return self.cache_write + self.cache_write_1h

    @property
    def cache_efficiency(self) -> float | None:
        """The percentage of input tokens that came from the cache; None without input."""
        return round(100 * self.cache_read / self.prompt, 1) if self.prompt else None

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_creation + other.cache_creation,
        )


NO_TOKENS: Final = TokenCounts()


def parse_tokens(usage: Mapping[str, Any]) -> TokenCounts:
    """Returns the tokens in a response's ``usage``; missing or invalid amounts are zero."""
    split = as_mapping(usage.get("cache_creation"))
    written_1h = _amount(split.get("ephemeral_1h_input_tokens"))
    written = _amount(usage.get("cache_creation_input_tokens"))
    if not written:
        written = written_1h + _amount(split.get("ephemeral_5m_input_tokens"))
    written_1h = min(written_1h, written)
    return TokenCounts(
        input=_amount(usage.get("input_tokens")),
        output=_amount(usage.get("output_tokens")),
        cache_read=_amount(usage.get("cache_read_input_tokens")),
        cache_write=written - written_1h,
        cache_write_1h=written_1h,
        web_searches=_amount(as_mapping(usage.get("server_tool_use")).get("web_search_requests")),
        fast=usage.get("speed") == "fast",
        in_the_us=usage.get("inference_geo") == "us",
    )


def _amount(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Returns a JSON object; an empty one in place of any other value."""
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars per million tokens; other kinds cost a multiple of the input."""

    input: float
    _: KW_ONLY
    read: float  # from the cache
    fast: Rates | None = None  # rates for fast responses; None: the same
    long: Rates | None = None  # rates for prompts of more than ``long_above`` tokens
    long_above: int = 0

    def cost_usd(self, tokens: TokenCounts) -> float:
        """Returns the cost of the tokens."""
        rates = self.fast if tokens.fast and self.fast else self
        if rates.long and tokens.prompt > rates.long_above:
            rates = rates.long
        # In this order, and without a common divisor: the sum is rounded as the CLI rounds it.
        written = tokens.cache_write / _MILLION * (rates.input * _WRITE)
        if tokens.cache_write_1h:
            written = tokens.cache_write_1h / _MILLION * (rates.input * _WRITE_1H) + written
        usd = (
            tokens.input / _MILLION * rates.input
            + tokens.output / _MILLION * (rates.input * _OUTPUT)
            + tokens.cache_read / _MILLION * rates.read
            + written
        )
        return usd * (_IN_THE_US if tokens.in_the_us else 1) + tokens.web_searches * _WEB_SEARCH_USD


_15, _10 = Rates(15, read=1.5), Rates(10, read=1)
_5, _3 = Rates(5, read=0.5), Rates(3, read=0.3)
_10_CHEAP_TO_READ = Rates(10, read=0.25)
_8 = Rates(8, read=0.2, fast=Rates(16, read=0.4))
_OPUS_FAST = Rates(5, read=0.5, fast=_10)
_OPUS_VERY_FAST = Rates(5, read=0.5, fast=Rates(30, read=3))

# A name with one number is also the name with ".0".
_LIST: Mapping[str, Rates] = {
    "claude-3-5-haiku": Rates(0.8, read=0.08),
    "claude-haiku-4-5": Rates(1, read=0.1),
    "claude-haiku-5-5": Rates(0.1, read=0.01, long=Rates(0.5, read=0.05), long_above=100_000),
    "claude-3-5-sonnet": _3,
    "claude-3-7-sonnet": _3,
    "claude-sonnet-4": _3,
    "claude-sonnet-4-5": _3,
    "claude-sonnet-4-6": _3,
    "claude-sonnet-5": Rates(2, read=0.2),
    "claude-sonnet-5-5": Rates(2, read=0.1),
    "claude-opus-4": _15,
    "claude-opus-4-1": _15,
    "claude-opus-4-5": _5,
    "claude-opus-4-6": _OPUS_VERY_FAST,
    "claude-opus-4-7": _OPUS_VERY_FAST,
    "claude-opus-4-8": _OPUS_FAST,
    "claude-opus-5": _OPUS_FAST,
    "claude-opus-5-5": Rates(4, read=0.2, fast=Rates(8, read=0.4)),
    "claude-fable-5": _10,
    "claude-fable-5-1": _10_CHEAP_TO_READ,
    "claude-fable-5-2": _8,
    "claude-mythos-5": _10,
    "claude-mythos-5-1": _10_CHEAP_TO_READ,
    "claude-mythos-5-2": _8,
}


def _as_pattern(name: str) -> str:
    """Returns a pattern for the name where it is not the beginning of another model's name."""
    escaped = re.escape(name)
    if not name[-1].isdigit():
        return escaped
    if re.search(r"\d-\d+\Z", name):
        return rf"{escaped}(?!\d)"
    # After one number, a second number of one or two digits is another version; a date is not.
    return rf"{escaped}(?:-0)?(?!\d)(?!-\d{{1,2}}(?![\da-z]))"


# The longest first: "claude-opus-4-1" is not a "claude-opus-4".
_NAMES = sorted(_LIST, key=len, reverse=True)
_PATTERN = re.compile("|".join(f"({_as_pattern(name)})" for name in _NAMES))


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of all models, found by the model's name in any longer name that contains it."""

    default_model: str  # its price is used for unknown models

    def cost_usd(self, model: str, tokens: TokenCounts) -> float:
        """Returns the cost of a response."""
        match = _PATTERN.search(model.lower().replace(".", "-"))
        name = _NAMES[match.lastindex - 1] if match and match.lastindex else self.default_model
        return _LIST[name].cost_usd(tokens)


LIST_PRICES: Final = Prices("claude-opus-5-5")
"""The prices that the CLI assumes with an API key."""

SUBSCRIPTION_PRICES: Final = Prices("claude-sonnet-5-5")
"""The prices that the CLI assumes with a subscription's token: its default model differs."""

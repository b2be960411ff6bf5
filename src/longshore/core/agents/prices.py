"""Prices: what an answer of a model costs, by its tokens.

The figures and the rules are those of the agent's own command line (2.1.325), found by letting it
pay for answers of known size; so a run costs here what it says there, to the last bit of the sum.
It prices what was *asked for*, not what the answer calls itself. A model that it does not know it
prices as its default model: a guess, and said so by ``has_price``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from longshore.errors import ConfigurationError

_MILLION = 1e6
# Answers that are computed in the United States on demand; searches cost the same everywhere.
_IN_THE_US = 1.1
_WEB_SEARCH_USD = 0.01
_HIGHEST_USD = 10_000.0
# What it costs to write to a cache, as a multiple of the input; wherever it was measured.
_WRITE, _WRITE_1H = 1.25, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledTokens:
    """The tokens of a response, by the kinds that are billed."""

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


NO_TOKENS: Final = BilledTokens()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """US dollars per million tokens of each kind, and per search."""

    input: float
    output: float
    cache_read: float
    cache_write: float
    cache_write_1h: float
    web_search: float = _WEB_SEARCH_USD
    fast: Rates | None = None  # rates for fast responses; None: the same
    long: Rates | None = None  # rates for prompts of more than ``long_above`` tokens
    long_above: int = 0

    def cost_usd(self, tokens: BilledTokens) -> float:
        """Returns the cost of the tokens."""
        rates = self.fast if tokens.fast and self.fast else self
        if rates.long and tokens.prompt > rates.long_above:
            rates = rates.long
        # In this order, and not over a common divisor: so the command line's own sum comes out.
        written = tokens.cache_write / _MILLION * rates.cache_write
        if tokens.cache_write_1h:
            written = tokens.cache_write_1h / _MILLION * rates.cache_write_1h + written
        usd = (
            tokens.input / _MILLION * rates.input
            + tokens.output / _MILLION * rates.output
            + tokens.cache_read / _MILLION * rates.cache_read
            + written
        )
        return (
            usd * (_IN_THE_US if tokens.in_the_us else 1) + tokens.web_searches * rates.web_search
        )


def _rates(usd_in: float, *, read: float, **more: Any) -> Rates:
    """Output costs five times the input, too; only what is read from a cache differs."""
    return Rates(
        input=usd_in,
        output=usd_in * 5,
        cache_read=read,
        cache_write=usd_in * _WRITE,
        cache_write_1h=usd_in * _WRITE_1H,
        **more,
    )


_15, _10 = _rates(15, read=1.5), _rates(10, read=1)
_5, _3 = _rates(5, read=0.5), _rates(3, read=0.3)
_10_CHEAP_TO_READ = _rates(10, read=0.25)
_8 = _rates(8, read=0.2, fast=_rates(16, read=0.4))
_OPUS_FAST = _rates(5, read=0.5, fast=_10)
_OPUS_VERY_FAST = _rates(5, read=0.5, fast=_rates(30, read=3))

# A name of one number is also the one with ".0".
_LIST: Mapping[str, Rates] = {
    "claude-3-5-haiku": Rates(
        input=0.8, output=4, cache_read=0.08, cache_write=1, cache_write_1h=1.6
    ),
    "claude-haiku-4-5": _rates(1, read=0.1),
    "claude-haiku-5-5": Rates(
        input=0.1,
        output=0.5,
        cache_read=0.01,
        cache_write=0.125,
        cache_write_1h=0.2,
        long=_rates(0.5, read=0.05),
        long_above=100_000,
    ),
    "claude-3-5-sonnet": _3,
    "claude-3-7-sonnet": _3,
    "claude-sonnet-4": _3,
    "claude-sonnet-4-5": _3,
    "claude-sonnet-4-6": _3,
    "claude-sonnet-5": _rates(2, read=0.2),
    "claude-sonnet-5-5": _rates(2, read=0.1),
    "claude-opus-4": _15,
    "claude-opus-4-1": _15,
    "claude-opus-4-5": _5,
    "claude-opus-4-6": _OPUS_VERY_FAST,
    "claude-opus-4-7": _OPUS_VERY_FAST,
    "claude-opus-4-8": _OPUS_FAST,
    "claude-opus-5": _OPUS_FAST,
    "claude-opus-5-5": _rates(4, read=0.2, fast=_rates(8, read=0.4)),
    "claude-fable-5": _10,
    "claude-fable-5-1": _10_CHEAP_TO_READ,
    "claude-fable-5-2": _8,
    "claude-mythos-5": _10,
    "claude-mythos-5-1": _10_CHEAP_TO_READ,
    "claude-mythos-5-2": _8,
}


@dataclass(frozen=True, slots=True)
class Prices:
    """What each model costs, by its name, in whatever longer name that stands."""

    table: Mapping[str, Rates]
    default_model: str = "claude-opus-5-5"  # its price is used for unknown models
    _names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.default_model not in self.table:
            message = (
                f"no price for {self.default_model!r}, by which unknown models are to be priced"
            )
            raise ValueError(message)
        # The longest first: "claude-opus-4-1" is no "claude-opus-4".
        names = tuple(sorted(self.table, key=len, reverse=True))
        object.__setattr__(self, "_names", names)
        pattern = "|".join(f"({_as_pattern(name)})" for name in names)
        object.__setattr__(self, "_pattern", re.compile(pattern))

    def has_price(self, model: str) -> bool:
        """Whether the table has a price for the model; otherwise the price is an estimate."""
        return self._match_name(model) is not None

    def rates_of(self, model: str) -> Rates:
        """Returns the rates of a model; those of the default model if it is unknown."""
        return self.table[self._match_name(model) or self.default_model]

    def cost_usd(self, model: str, tokens: BilledTokens) -> float:
        """Returns the cost of a response."""
        return self.rates_of(model).cost_usd(tokens)

    def _match_name(self, model: str) -> str | None:
        lowered = model.lower()
        if lowered in self.table:
            return lowered
        found = self._pattern.search(lowered.replace(".", "-"))
        return self._names[found.lastindex - 1] if found and found.lastindex else None


def _as_pattern(name: str) -> str:
    """The name where it is not the beginning of another one's."""
    wanted = re.escape(name.replace(".", "-"))
    if not name[-1].isdigit():
        return wanted
    if re.search(r"\d-\d+\Z", name):
        return rf"{wanted}(?!\d)"
    # With one number, a second one of a digit or two would be another version; a date is none.
    return rf"{wanted}(?:-0)?(?!\d)(?!-\d{{1,2}}(?![\da-z]))"


LIST_PRICES: Final = Prices(_LIST)
"""The prices that the CLI assumes with an API key."""

SUBSCRIPTION_PRICES: Final = Prices(_LIST, "claude-sonnet-5-5")
"""The prices that the CLI assumes with a subscription's token: its default model differs."""

_REQUIRED = ("input", "output")
_FIELDS = (*_REQUIRED, "cache_read", "cache_write", "cache_write_1h", "web_search")


def with_custom_prices(custom: Mapping[str, Any], *, base: Prices = LIST_PRICES) -> Prices:
    """The prices with some models' replaced or added, as somebody has set them.

    Args:
        given: Model to ``{"input": 3, "output": 15}``: US dollars for a million tokens, and for one
            ``web_search``. What is missing follows from the input as it does with most models.
        base: For all other models.

    Raises:
        ConfigurationError: with everything that is wrong with it.
    """
    problems = [problem for name, row in custom.items() for problem in _problems_of(name, row)]
    if problems:
        raise ConfigurationError(problems)
    own = {name.lower(): _read(row) for name, row in custom.items()}
    return Prices({**base.table, **own}, base.default_model)


def _read(row: Mapping[str, Any]) -> Rates:
    usd = float(row["input"])
    return Rates(
        input=usd,
        output=float(row["output"]),
        cache_read=float(row.get("cache_read", usd / 10)),
        cache_write=float(row.get("cache_write", usd * _WRITE)),
        cache_write_1h=float(row.get("cache_write_1h", usd * _WRITE_1H)),
        web_search=float(row.get("web_search", _WEB_SEARCH_USD)),
    )


def _problems_of(name: Any, row: Any) -> Iterator[str]:
    if not isinstance(name, str) or not name.strip():
        yield f"prices: {name!r} is no name of a model"
        return
    if not isinstance(row, Mapping):
        yield f"prices: {name}: expected {{'input': …, 'output': …}}, not {row!r}"
        return
    yield from (f"prices: {name}: {field!r} is missing" for field in _REQUIRED if field not in row)
    for key, value in row.items():
        if key not in _FIELDS:
            yield f"prices: {name}: {key!r} is none of {', '.join(_FIELDS)}"
        elif not _is_price(value):
            yield f"prices: {name}: {key} must be a number from 0 to {_HIGHEST_USD:,.0f}"


def _is_price(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value <= _HIGHEST_USD

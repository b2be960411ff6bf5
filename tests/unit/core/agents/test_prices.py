"""Prices, compared with what the agent's CLI reports for responses of known size."""

import pytest

from longshore.core.agents.prices import (
    LIST_PRICES,
    NO_TOKENS,
    SUBSCRIPTION_PRICES,
    TokenCounts,
)

MILLION = 1_000_000
SOME = 90_000
"""Less than any prompt that costs more for its length."""

# Model -> US dollars for a million tokens: input, output, from a cache, to it for 5 min, for 1 h.
MEASURED = {
    "claude-3-5-haiku": (0.8, 4, 0.08, 1, 1.6),
    "claude-haiku-4-5": (1, 5, 0.1, 1.25, 2),
    "claude-haiku-5-5": (0.1, 0.5, 0.01, 0.125, 0.2),
    "claude-3-5-sonnet": (3, 15, 0.3, 3.75, 6),
    "claude-3-7-sonnet": (3, 15, 0.3, 3.75, 6),
    "claude-sonnet-4-0": (3, 15, 0.3, 3.75, 6),
    "claude-sonnet-4-5": (3, 15, 0.3, 3.75, 6),
    "claude-sonnet-4-6": (3, 15, 0.3, 3.75, 6),
    "claude-sonnet-5": (2, 10, 0.2, 2.5, 4),
    "claude-sonnet-5-5": (2, 10, 0.1, 2.5, 4),
    "claude-opus-4-0": (15, 75, 1.5, 18.75, 30),
    "claude-opus-4-1": (15, 75, 1.5, 18.75, 30),
    "claude-opus-4-5": (5, 25, 0.5, 6.25, 10),
    "claude-opus-4-6": (5, 25, 0.5, 6.25, 10),
    "claude-opus-4-7": (5, 25, 0.5, 6.25, 10),
    "claude-opus-4-8": (5, 25, 0.5, 6.25, 10),
    "claude-opus-5": (5, 25, 0.5, 6.25, 10),
    "claude-opus-5-5": (4, 20, 0.2, 5, 8),
    "claude-fable-5": (10, 50, 1, 12.5, 20),
    "claude-fable-5-1": (10, 50, 0.25, 12.5, 20),
    "claude-fable-5-2": (8, 40, 0.2, 10, 16),
    "claude-mythos-5": (10, 50, 1, 12.5, 20),
    "claude-mythos-5-1": (10, 50, 0.25, 12.5, 20),
    "claude-mythos-5-2": (8, 40, 0.2, 10, 16),
}
# The same at a higher speed; for every other model that costs nothing more.
MEASURED_FAST = {
    "claude-opus-4-6": (30, 150, 3, 37.5, 60),
    "claude-opus-4-7": (30, 150, 3, 37.5, 60),
    "claude-opus-4-8": (10, 50, 1, 12.5, 20),
    "claude-opus-5": (10, 50, 1, 12.5, 20),
    "claude-opus-5-5": (8, 40, 0.4, 10, 16),
    "claude-fable-5-2": (16, 80, 0.4, 20, 32),
    "claude-mythos-5-2": (16, 80, 0.4, 20, 32),
}
# The same for a million tokens at once.
MEASURED_LONG = {**MEASURED, "claude-haiku-5-5": (0.5, 2.5, 0.05, 0.625, 1)}


def _of_each_kind(model: str, count: int, *, fast: bool = False) -> tuple[float, ...]:
    def cost(**tokens: int) -> float:
        return LIST_PRICES.cost_usd(model, TokenCounts(fast=fast, **tokens))

    read = cost(input=count)
    return (
        read,
        cost(input=count, output=count) - read,
        cost(cache_read=count),
        cost(cache_write=count),
        cost(cache_write_1h=count),
    )


@pytest.mark.parametrize("model", MEASURED)
def test_each_kind_of_token_has_the_measured_price(model: str) -> None:
    usd = [rate * SOME / MILLION for rate in MEASURED[model]]

    assert _of_each_kind(model, SOME) == pytest.approx(usd, abs=1e-12)


@pytest.mark.parametrize("model", MEASURED)
def test_fast_responses_have_the_measured_price(model: str) -> None:
    usd = [rate * SOME / MILLION for rate in MEASURED_FAST.get(model, MEASURED[model])]

    assert _of_each_kind(model, SOME, fast=True) == pytest.approx(usd, abs=1e-12)


@pytest.mark.parametrize("model", MEASURED)
def test_long_prompts_have_the_measured_price(model: str) -> None:
    assert _of_each_kind(model, MILLION) == pytest.approx(list(MEASURED_LONG[model]), abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "usd"),
    [
        (TokenCounts(input=100_000), 0.01),
        (TokenCounts(input=50_000, cache_read=25_000, cache_write=25_001), 0.041875625),
        (TokenCounts(input=50_000, cache_read=25_000, cache_write_1h=25_001), 0.051251),
        (TokenCounts(input=10, output=MILLION), 0.500001),
    ],
    ids=["at the limit", "one above it", "one above it for an hour", "a long answer is none"],
)
def test_a_prompt_is_long_by_all_that_the_model_reads(tokens: TokenCounts, usd: float) -> None:
    assert LIST_PRICES.cost_usd("claude-haiku-5-5", tokens) == pytest.approx(usd, abs=1e-12)


def test_a_search_costs_a_cent_and_no_more_in_the_united_states() -> None:
    searched = TokenCounts(input=SOME, web_searches=1000, in_the_us=True)

    assert LIST_PRICES.cost_usd("claude-haiku-4-5", searched) == pytest.approx(10.099)
    assert LIST_PRICES.cost_usd("foo", TokenCounts(web_searches=3)) == pytest.approx(0.03)


def test_no_tokens_cost_nothing() -> None:
    assert LIST_PRICES.cost_usd("claude-opus-4-1", NO_TOKENS) == 0


def test_cache_creation_includes_all_cache_writes() -> None:
    tokens = TokenCounts(input=1, cache_read=20, cache_write=300, cache_write_1h=4000)

    assert tokens.cache_creation == 4300
    assert tokens.prompt == 4321


@pytest.mark.parametrize(
    ("name", "usd"),
    [
        ("claude-sonnet-4-5-20250929", 3),
        ("claude-sonnet-4-20250514", 3),
        ("claude-opus-4-20250514", 15),
        ("claude-opus-4-0-20250514", 15),
        ("claude-opus-4", 15),
        ("claude-opus-4-2025", 15),
        ("claude-opus-4@20250514", 15),
        ("claude-opus-4:1", 15),
        ("claude-opus-4-1b", 15),
        ("claude-opus-5-0", 5),
        ("claude-opus-5-20260301", 5),
        ("claude-opus-5-5-20261101", 4),
        ("claude-opus-5-5x", 4),
        ("claude-opus-4.8", 5),
        ("claude-opus-4-7-8", 5),
        ("claude-opus-4-8-claude-haiku-4-5", 5),
        ("claude-haiku-4-5.1", 1),
        ("claude-sonnet-5-123", 2),
        ("claude-sonnet-5x", 2),
        ("claude-sonnet-5-v2", 2),
        ("claude-sonnet-5-9x", 2),
        ("claude-sonnet-5-5-2", 2),
        ("claude-sonnet-5-5-1m", 2),
        ("claude-sonnet-4-x", 3),
        ("claude-sonnet-4-5[1m]", 3),
        ("claude-3-5-haiku2", 0.8),
        ("claude-3-5-sonnet-latest", 3),
        ("CLAUDE-SONNET-4-5", 3),
        ("my-claude-sonnet-4-5-proxy", 3),
        ("anthropic/claude-sonnet-4.5", 3),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 3),
        ("claude-mythos-5-2-preview", 8),
        ("claude-fable-5-20260101", 10),
    ],
)
def test_a_longer_name_is_priced_by_the_model_in_it_as_was_measured(name: str, usd: float) -> None:
    assert LIST_PRICES.cost_usd(name, TokenCounts(input=1000)) == pytest.approx(usd / 1000)


@pytest.mark.parametrize(
    "name",
    [
        "foo",
        "",
        "gpt-5",
        "claude-instant",
        "claude-3-opus-20240229",
        "claude-4-5-sonnet",
        "claude_sonnet_4_5",
        "claude-sonnet-45",
        "claude-sonnet-4-7",
        "claude-sonnet-4-10-20260101",
        "claude-sonnet-5.1",
        "claude-sonnet-5-1-20260101",
        "claude-sonnet-5-55",
        "claude-sonnet-6",
        "claude-opus-4-0-1",
        "claude-opus-4-15",
        "claude-opus-5-6",
        "claude-haiku-5",
        "claude-fable-5-3",
        "claude-mythos-5-10",
    ],
)
def test_an_unknown_model_has_the_price_of_the_default_one_as_was_measured(name: str) -> None:
    tokens = TokenCounts(input=1000)

    assert LIST_PRICES.cost_usd(name, tokens) == pytest.approx(0.004)
    assert SUBSCRIPTION_PRICES.cost_usd(name, tokens) == pytest.approx(0.002)

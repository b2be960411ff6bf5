"""Shards of a proof: together they cover every item once."""

import argparse

import pytest

from verification.shard import Shard, add_shard_option


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_all_shards_together_select_each_item_once(count: int) -> None:
    items = list(range(10))

    selected = [item for number in range(count) for item in Shard(number + 1, count).select(items)]

    assert sorted(selected) == items


def test_a_shard_takes_every_nth_item() -> None:
    assert list(Shard.parse("2/3").select("abcdefgh")) == ["b", "e", "h"]


def test_without_the_option_everything_is_selected() -> None:
    parser = argparse.ArgumentParser()
    add_shard_option(parser)

    options = parser.parse_args([])

    assert list(options.shard.select("abc")) == ["a", "b", "c"]
    assert str(parser.parse_args(["--shard", "2/5"]).shard) == "shard 2/5"


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "a/b", "1/", "-1/3"])
def test_a_malformed_shard_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="like 2/5"):
        Shard.parse(text)

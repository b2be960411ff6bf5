"""``--shard I/N``: a part of a long proof, so that several machines or sessions can share it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Shard:
    """Every ``count``-th item, from the ``number``-th on."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse ``2/5``."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            message = f"expected a shard like 2/5, not {text!r}"
            raise argparse.ArgumentTypeError(message)
        return cls(int(number), int(count))

    def select(self, items: Iterable[ItemT]) -> Iterator[ItemT]:
        """The items of this shard, in their order."""
        return islice(items, self.number - 1, None, self.count)

    def __str__(self) -> str:
        return f"shard {self.number}/{self.count}"


def add_shard_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--shard``."""
    parser.add_argument(
        "--shard",
        type=Shard.parse,
        default=Shard(),
        metavar="I/N",
        help="only the I-th of N parts; all N parts together cover everything",
    )

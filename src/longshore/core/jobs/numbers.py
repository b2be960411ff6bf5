"""Sets of task numbers that are small enough for a row.

A job of 10,000 tasks stores which of them have finished as one bit each, 1.25 KB in all. Setting a
bit twice has the same effect as setting it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final


class NumberSet:
    """An immutable set of small non-negative integers, stored as the bits of one integer."""

    __slots__ = ("_bits",)

    def __init__(self, numbers: Iterable[int] = (), *, bits: int = 0) -> None:
        for number in numbers:
            bits |= 1 << number  # raises ValueError for a negative number
        self._bits = bits

    @property
    def bits(self) -> int:
        """The integer whose bits are the numbers."""
        return self._bits

    @classmethod
    def below(cls, count: int) -> NumberSet:
        """Returns the set of all numbers below ``count``."""
        return cls(bits=(1 << count) - 1)

    @classmethod
    def from_text(cls, text: str) -> NumberSet:
        """Returns the set that ``to_text`` wrote.

        Raises:
            ValueError: the text is something else.
        """
        if text.startswith("-"):
            raise ValueError(f"a set of numbers cannot be {text[:40]!r}")
        return cls(bits=int(text, 16) if text else 0)

    def to_text(self) -> str:
        """Returns hexadecimal digits; an empty text for the empty set."""
        return f"{self._bits:x}" if self._bits else ""

    def __contains__(self, number: int) -> bool:
        return number >= 0 and bool(self._bits >> number & 1)

    def __iter__(self) -> Iterator[int]:
        digits = reversed(f"{self._bits:b}")
        return (number for number, digit in enumerate(digits) if digit == "1")

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __or__(self, other: NumberSet) -> NumberSet:
        return NumberSet(bits=self._bits | other._bits)

    def __and__(self, other: NumberSet) -> NumberSet:
        return NumberSet(bits=self._bits & other._bits)

    def __sub__(self, other: NumberSet) -> NumberSet:
        return NumberSet(bits=self._bits & ~other._bits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberSet) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    def __repr__(self) -> str:
        shown = list(self)
        return f"NumberSet({shown})" if len(shown) <= 20 else f"NumberSet(<{len(shown)} numbers>)"


NO_NUMBERS: Final = NumberSet()

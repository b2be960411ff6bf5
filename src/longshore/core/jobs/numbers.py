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
    _bits: int

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        bits = bytearray()
        for number in numbers:
            if number < 0:
                raise _negative(number)
            byte, bit = divmod(number, 8)
            if byte >= len(bits):
                bits.extend(bytes(byte + 1 - len(bits)))
            bits[byte] |= 1 << bit
        self._bits = int.from_bytes(bits, "little")

    @classmethod
    def below(cls, count: int) -> NumberSet:
        """Returns the set of all numbers below ``count``."""
        if count < 0:
            raise _negative(count)
        return cls._from_bits((1 << count) - 1)

    @classmethod
    def from_text(cls, text: str) -> NumberSet:
        """Returns the set that ``to_text`` wrote."""
        bits = int(text, 16) if text else 0
        if bits < 0:
            raise _negative(bits)
        return cls._from_bits(bits)

    @classmethod
    def _from_bits(cls, bits: int) -> NumberSet:
        numbers = object.__new__(cls)
        numbers._bits = bits
        return numbers

    def to_text(self) -> str:
        """Returns hexadecimal digits; an empty text for the empty set."""
        return f"{self._bits:x}" if self._bits else ""

    def __contains__(self, number: int) -> bool:
        return number >= 0 and bool(self._bits >> number & 1)

    def __iter__(self) -> Iterator[int]:
        data = self._bits.to_bytes((self._bits.bit_length() + 7) // 8, "little")
        for index, byte in enumerate(data):
            while byte:
                low = byte & -byte
                yield index * 8 + low.bit_length() - 1
                byte ^= low

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __bool__(self) -> bool:
        return self._bits != 0

    def __or__(self, other: NumberSet) -> NumberSet:
        return self._from_bits(self._bits | other._bits)

    def __and__(self, other: NumberSet) -> NumberSet:
        return self._from_bits(self._bits & other._bits)

    def __sub__(self, other: NumberSet) -> NumberSet:
        return self._from_bits(self._bits & ~other._bits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberSet) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    def __repr__(self) -> str:
        shown = list(self)
        return f"NumberSet({shown})" if len(shown) <= 20 else f"NumberSet(<{len(shown)} numbers>)"


def _negative(number: int) -> ValueError:
    return ValueError(f"a task number cannot be {number}: numbers begin with 0")


NO_NUMBERS: Final = NumberSet()

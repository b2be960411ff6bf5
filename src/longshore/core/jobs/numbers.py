"""Sets of task numbers, small enough to live in a row.

A job of 10,000 tasks keeps who has finished as one bit each, 1.25 KB in all, so that one small row
serves the whole job and setting a bit twice is the same as once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final


class NumberSet:
    """An immutable set of small non-negative integers, kept as the bits of one integer."""

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
        """All numbers below ``count``."""
        if count < 0:
            raise _negative(count)
        return cls._from_bits((1 << count) - 1)

    @classmethod
    def from_text(cls, text: str) -> NumberSet:
        """The inverse of ``to_text``."""
        bits = int(text, 16) if text else 0
        if bits < 0:
            raise _negative(bits)
        return cls._from_bits(bits)

    @classmethod
    def _from_bits(cls, bits: int) -> NumberSet:
        made = object.__new__(cls)
        made._bits = bits
        return made

    def to_text(self) -> str:
        """Hexadecimal digits; nothing for the empty set."""
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
    return ValueError(f"a set of task numbers cannot hold {number}: they begin with 0")


NO_NUMBERS: Final = NumberSet()

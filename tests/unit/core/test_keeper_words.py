"""Worker and keeper: lines that are cut anywhere arrive whole, and records as they were told."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.core.keeper_words import (
    TOLD_AT_ONCE_BYTES,
    Cause,
    Lines,
    Told,
    Word,
    line_of,
    told_in,
)


@given(
    numbers=st.lists(st.integers(min_value=0), min_size=1, max_size=9),
    piece=st.integers(min_value=1, max_value=64),
)
def test_messages_arrive_whole_and_in_order_however_they_are_cut(
    numbers: list[int], piece: int
) -> None:
    data = b"".join(line_of(Word.REFUSED, number, error="e") for number in numbers)
    lines = Lines()

    heard = [said for at in range(0, len(data), piece) for said in lines.add(data[at : at + piece])]

    assert heard == [{"word": "refused", "number": number, "error": "e"} for number in numbers]


A_NUMBER = st.integers(min_value=-(2**31), max_value=2**31 - 1)
RECORDS = st.builds(
    Told,
    number=st.integers(min_value=-(2**63), max_value=2**63 - 1),
    over=st.booleans(),
    leader=A_NUMBER,
    status=A_NUMBER,
    peak_bytes=st.integers(min_value=0, max_value=2**63 - 1),
    cause=st.sampled_from(Cause),
)


@given(told=st.lists(RECORDS, max_size=9))
def test_records_are_read_as_they_were_told(told: list[Told]) -> None:
    assert told_in(b"".join(one.record() for one in told)) == told


def test_a_full_read_ends_between_two_records() -> None:
    assert TOLD_AT_ONCE_BYTES % len(Told(number=1, over=False).record()) == 0

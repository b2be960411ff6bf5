"""Worker and keeper: lines that are cut anywhere arrive whole."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.core.keeper_words import Lines, Word, line_of


@given(
    numbers=st.lists(st.integers(min_value=0), min_size=1, max_size=9),
    piece=st.integers(min_value=1, max_value=64),
)
def test_messages_arrive_whole_and_in_order_however_they_are_cut(
    numbers: list[int], piece: int
) -> None:
    data = b"".join(line_of(Word.STARTED, number, pid=7) for number in numbers)
    lines = Lines()

    heard = [said for at in range(0, len(data), piece) for said in lines.add(data[at : at + piece])]

    assert heard == [{"word": "started", "number": number, "pid": 7} for number in numbers]

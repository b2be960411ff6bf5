"""Frames, records, boundaries and pages: what is written is read, however it is split."""

import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.execution.slot_page import (
    BEGUN_CAPACITY,
    PAGE_BYTES,
    SlotPage,
    begun_tasks,
    clock_ns,
    open_page_file,
    read_boot_id,
)
from longshore.execution.slot_protocol import (
    FRAME_LIMIT_BYTES,
    TOKEN_BYTES,
    FileRecord,
    Frame,
    FrameDecoder,
    InvalidFrame,
    LineDecoder,
    OutcomeFrame,
    OutputSplitter,
    ReportFrame,
    TaskRecord,
    TooLateFrame,
    decode_record,
    encode,
    encode_boundary,
    encode_frame,
)

NUMBERS = st.integers(min_value=1, max_value=2**63 - 1)
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
TOKEN = b"\0" + bytes(range(1, TOKEN_BYTES))
ERRORS = st.fixed_dictionaries(
    {"category": TEXTS, "message": TEXTS, "exitCode": st.none() | st.integers(-255, 255)}
)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        OutcomeFrame,
        *(NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.booleans()),
        *(st.none() | st.binary(max_size=50), st.none() | ERRORS),
    ),
    st.builds(TooLateFrame, NUMBERS, NUMBERS),
    st.builds(ReportFrame, NUMBERS, NUMBERS, st.binary(max_size=50)),
)
RECORDS = st.one_of(
    st.builds(
        TaskRecord,
        *(NUMBERS, NUMBERS, NUMBERS, TEXTS, TEXTS, TEXTS, NUMBERS, TEXTS),
        *([st.none() | TEXTS] * 4),
    ),
    st.builds(FileRecord, NUMBERS, NUMBERS, TEXTS),
)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    positions = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(positions)]


CUTS = st.lists(st.integers(min_value=0, max_value=10_000), max_size=20)


@given(st.lists(FRAMES, max_size=8), CUTS)
def test_frames_are_decoded_however_they_are_split(frames: list[Frame], cuts: list[int]) -> None:
    decoder = FrameDecoder()
    data = b"".join(map(encode_frame, frames))

    decoded = [frame for part in split(data, cuts) for frame in decoder.feed(part)]

    assert decoded == frames


@given(st.lists(st.binary(max_size=200), max_size=5), st.lists(FRAMES, max_size=3))
def test_garbage_is_refused_or_waits_for_more(garbage: list[bytes], frames: list[Frame]) -> None:
    decoder = FrameDecoder()
    for frame in frames:
        assert decoder.feed(encode_frame(frame)) == [frame]
    try:
        for part in garbage:
            decoder.feed(part)
    except InvalidFrame:
        pass


@pytest.mark.parametrize("length", [FRAME_LIMIT_BYTES + 1, 2**32 - 1])
def test_a_frame_that_is_too_long_is_refused_at_once(length: int) -> None:
    with pytest.raises(InvalidFrame, match="exceeds"):
        FrameDecoder().feed(struct.pack("<I", length))


@given(RECORDS)
def test_a_record_is_decoded_as_it_was_encoded(record: Any) -> None:
    assert decode_record(encode(record)) == record


OUTPUTS = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.integers(0, TOKEN_BYTES - 1).map(lambda size: b"x" + TOKEN[:size]),
        st.integers(0, 40).map(lambda size: b"\0" * size),
    ),
    max_size=6,
)


@given(OUTPUTS, st.binary(max_size=20), CUTS)
def test_output_is_split_at_boundaries_however_it_is_read(
    outputs: list[bytes], rest: bytes, cuts: list[int]
) -> None:
    splitter = OutputSplitter(TOKEN)
    data = b"".join(
        output + encode_boundary(TOKEN, number) for number, output in enumerate(outputs)
    )
    collected = [b""]
    numbers = []
    for part in split(data + rest, cuts):
        for output, number in splitter.feed(part):
            collected[-1] += output
            if number is not None:
                numbers.append(number)
                collected.append(b"")
    collected[-1] += splitter.flush()

    assert numbers == list(range(len(outputs)))
    assert collected == [*outputs, rest]


def test_output_that_cannot_be_a_boundary_is_not_retained() -> None:
    splitter = OutputSplitter(TOKEN)

    assert splitter.feed(b"abc\0") == [(b"abc", None)]
    assert splitter.feed(b"def") == [(b"\0def", None)]


def new_page(path: Path, index: int = 0) -> SlotPage:
    file = open_page_file(str(path), index + 1)
    page = SlotPage(file, index)
    os.close(file)
    page.format()
    return page


def test_a_page_records_what_was_begun_and_its_file_outlives_it(tmp_path: Path) -> None:
    path = tmp_path / "w1.begun"
    first, second = new_page(path), new_page(path, 1)
    for page in (first, second):
        page.deadline_ns = clock_ns() + 10**12
    first.begin(11, 1)
    first.finish()
    second.begin(12, 2)

    assert (first.running, second.running) == (False, True)
    assert second.last_begun == (12, 2)
    for page in (first, second):
        page.close()
    assert begun_tasks(path.read_bytes(), read_boot_id()) == {(11, 1), (12, 2)}


def test_nothing_begins_after_the_deadline(tmp_path: Path) -> None:
    page = new_page(tmp_path / "w1.begun")

    assert not page.begin(1, 1)  # none was set
    page.deadline_ns = clock_ns()
    assert not page.begin(1, 1)
    assert (page.running, page.last_begun, page.begun_count) == (False, None, 0)
    page.close()
    content = (tmp_path / "w1.begun").read_bytes()
    assert begun_tasks(content, read_boot_id()) == set()


def test_a_page_remembers_the_last_tasks_also_in_a_new_slot(tmp_path: Path) -> None:
    path = tmp_path / "w1.begun"
    page = new_page(path)
    page.deadline_ns = clock_ns() + 10**12
    for number in range(1, BEGUN_CAPACITY + 11):
        page.begin(number, 7)
    page.close()

    new_page(path).close()

    expected = {(number, 7) for number in range(11, BEGUN_CAPACITY + 11)}
    assert begun_tasks(path.read_bytes(), read_boot_id()) == expected


def test_a_page_of_another_boot_or_kind_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "w1.begun"
    new_page(path).close()
    content = path.read_bytes()

    assert begun_tasks(content, bytes(16)) is None
    assert begun_tasks(content, b"") is None
    assert begun_tasks(content[:-1], read_boot_id()) is None
    assert begun_tasks(bytes(PAGE_BYTES), read_boot_id()) is None
    assert begun_tasks(b"", read_boot_id()) == set()


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"on", b"e\ntw", b"o\n\nfo", b"ur\n"], [b"one", b"two", b"", b"four"]),
        ([b"12345678\n123456789\nnext\n"], [b"12345678", None, b"next"]),
        ([b"x" * 20, b"x" * 20, b"\nnext\n"], [None, b"next"]),
        ([b"1234567", b"89", b"0\n", b"next\nrest"], [None, b"next"]),
    ],
)
def test_a_channel_is_split_into_lines_and_a_line_that_is_too_long_is_reported_once(
    chunks: list[bytes], lines: list[bytes | None]
) -> None:
    decoder = LineDecoder(lambda line: len(line) > 8)

    assert [line for chunk in chunks for line in decoder.feed(chunk)] == lines

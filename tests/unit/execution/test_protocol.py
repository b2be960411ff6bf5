"""The protocol: records are decoded as encoded."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.execution import protocol
from longshore.execution.protocol import (
    STATUS_READ_BYTES,
    ChildStatus,
    KillCause,
    decode_statuses,
)

A_NUMBER = st.integers(min_value=-(2**31), max_value=2**31 - 1)
STATUSES = st.builds(
    ChildStatus,
    number=st.integers(min_value=-(2**63), max_value=2**63 - 1),
    ended=st.booleans(),
    child_pid=A_NUMBER,
    wait_status=A_NUMBER,
    peak_bytes=st.integers(min_value=0, max_value=2**63 - 1),
    cause=st.sampled_from(KillCause),
)


@given(reported=st.lists(STATUSES, max_size=9))
def test_records_are_decoded_as_they_were_encoded(reported: list[ChildStatus]) -> None:
    assert decode_statuses(b"".join(item.encode() for item in reported)) == reported


def test_a_full_read_ends_between_two_records() -> None:
    assert STATUS_READ_BYTES % len(ChildStatus(number=1, ended=False).encode()) == 0


def test_the_pipes_have_numbers_that_any_shell_accepts_in_a_redirection() -> None:
    numbers = {protocol.CHANNEL_FD, protocol.REPLIES_FD}

    assert numbers <= set(range(3, 10))
    assert len(numbers) == 2


def test_every_variable_has_the_prefix_of_an_attempt() -> None:
    names = [name for key, name in vars(protocol).items() if key.endswith("_VARIABLE")]

    assert len(names) == len(set(names)) == 5
    assert all(name.startswith("LONGSHORE_ATTEMPT") for name in names)

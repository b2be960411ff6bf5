"""The protocol: records are decoded as encoded."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.execution import protocol
from longshore.execution.protocol import STATUS_BYTES, ChildStatus, KillCause, decode_status

A_NUMBER = st.integers(min_value=-(2**31), max_value=2**31 - 1)
STATUSES = st.builds(
    ChildStatus,
    ended=st.booleans(),
    wait_status=A_NUMBER,
    peak_bytes=st.integers(min_value=0, max_value=2**63 - 1),
    cause=st.sampled_from(KillCause),
)


@given(status=STATUSES)
def test_a_status_is_decoded_as_it_was_encoded(status: ChildStatus) -> None:
    assert len(status.encode()) == STATUS_BYTES
    assert decode_status(status.encode()) == status


def test_the_pipes_have_numbers_that_any_shell_accepts_in_a_redirection() -> None:
    numbers = {protocol.CHANNEL_FD, protocol.REPLIES_FD}

    assert numbers <= set(range(3, 10))
    assert len(numbers) == 2


def test_every_variable_has_the_prefix_of_an_attempt() -> None:
    names = [name for key, name in vars(protocol).items() if key.endswith("_VARIABLE")]

    assert len(names) == len(set(names)) == 9
    # Tracing libraries look for this one, so its name is theirs.
    others = [name for name in names if not name.startswith("LONGSHORE_ATTEMPT")]
    assert others == ["TRACEPARENT"]

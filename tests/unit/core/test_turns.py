"""When a worker sends commands and when it claims."""

from longshore.core.turns import SendTurn, StartClaim, StopClaim, TurnPlanner


def planner(slots: int = 3, *, joint: bool = True) -> TurnPlanner:
    result = TurnPlanner(slots=slots, claims_with_commands=joint)
    result.allow_claims()
    return result


def busy(slots: int = 3, *, joint: bool = True) -> TurnPlanner:
    """A planner whose slots are all taken."""
    result = planner(slots, joint=joint)
    assert result.decide() == [StartClaim(slots)]
    result.claim_ended(claimed=slots)
    assert result.decide() == []
    return result


def test_an_idle_worker_waits_for_as_many_tasks_as_it_has_slots() -> None:
    idle = planner(3)

    assert idle.decide() == [StartClaim(3)]
    assert idle.decide() == []


def test_a_worker_that_has_not_joined_claims_nothing() -> None:
    assert TurnPlanner(slots=3, claims_with_commands=True).decide() == []


def test_slots_that_a_claim_left_free_are_claimed_for_again() -> None:
    waiting = planner(3)
    waiting.decide()
    waiting.claim_ended(claimed=1)

    assert waiting.decide() == [StartClaim(2)]


def test_a_turn_claims_for_the_slots_that_its_commands_free() -> None:
    working = busy(3)
    working.command_added(ends_attempt=True)
    working.command_added(ends_attempt=False)

    assert working.decide() == [SendTurn(1)]


def test_an_attempt_beyond_the_slots_frees_none_when_it_ends() -> None:
    working = busy(2)
    working.command_added(ends_attempt=True)

    assert working.decide(busy_elsewhere=1) == [SendTurn(0)]


def test_commands_gather_while_a_turn_is_under_way() -> None:
    working = busy(3)
    working.command_added(ends_attempt=True)
    working.decide()
    working.command_added(ends_attempt=False)
    working.command_added(ends_attempt=True)
    assert working.decide() == []

    working.turn_ended(claimed=1)
    working.slot_freed()

    assert working.decide() == [SendTurn(1)]


def test_a_turn_that_found_nothing_is_followed_by_a_claim_that_waits() -> None:
    working = busy(3)
    working.command_added(ends_attempt=True)
    working.decide()

    working.turn_ended(claimed=0)
    working.slot_freed()

    assert working.decide() == [StartClaim(1)]


def test_a_turn_does_not_claim_for_slots_that_a_waiting_claim_is_for() -> None:
    waiting = planner(3)
    waiting.decide()
    waiting.claim_ended(claimed=1)
    waiting.decide()
    waiting.command_added(ends_attempt=False)

    assert waiting.decide() == [SendTurn(0)]


def test_a_turn_never_claims_for_more_than_all_slots() -> None:
    working = planner(1)
    for _ in range(3):
        working.command_added(ends_attempt=True)

    assert working.decide() == [SendTurn(1)]


def test_a_source_that_cannot_join_them_gets_each_turn_at_once_and_without_a_claim() -> None:
    working = busy(2, joint=False)
    working.command_added(ends_attempt=True)
    assert working.decide() == [SendTurn(0)]
    working.command_added(ends_attempt=False)
    assert working.decide() == [SendTurn(0)]

    working.slot_freed()

    assert working.decide() == [StartClaim(1)]


def test_a_worker_that_stops_cancels_the_claim_and_still_sends_commands() -> None:
    waiting = planner(2)
    waiting.decide()
    waiting.forbid_claims()
    waiting.command_added(ends_attempt=True)

    assert waiting.decide() == [StopClaim(), SendTurn(0)]
    waiting.claim_ended(claimed=0)
    waiting.turn_ended(claimed=0)
    assert waiting.decide() == []

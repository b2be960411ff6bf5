"""When a worker sends commands and when it claims."""

from longshore.core.turns import TurnDecision, TurnPlanner


def planner(slots: int = 3, *, joint: bool = True) -> TurnPlanner:
    result = TurnPlanner(slots=slots, claims_with_commands=joint)
    result.allow_claims()
    return result


def waiting(slots: int, *, left: int) -> TurnPlanner:
    """A planner whose claim has left this many slots free, and waits for tasks for these."""
    result = planner(slots)
    assert result.decide(busy=0) == TurnDecision(claim_slots=slots)
    result.claim_ended()
    assert result.decide(busy=slots - left) == TurnDecision(claim_slots=left)
    return result


def test_an_idle_worker_waits_for_as_many_tasks_as_it_has_slots() -> None:
    idle = planner(3)

    assert idle.decide(busy=0) == TurnDecision(claim_slots=3)
    assert idle.decide(busy=0) == TurnDecision()


def test_a_worker_that_has_not_joined_claims_nothing() -> None:
    assert TurnPlanner(slots=3, claims_with_commands=True).decide(busy=0) == TurnDecision()


def test_slots_that_a_claim_left_free_are_claimed_for_again() -> None:
    idle = planner(3)
    idle.decide(busy=0)
    idle.claim_ended()

    assert idle.decide(busy=1) == TurnDecision(claim_slots=2)


def test_a_turn_claims_for_the_slots_that_are_free() -> None:
    working = planner(3)

    assert working.decide(busy=2, commands=True) == TurnDecision(turn_slots=1)


def test_no_slot_is_free_while_more_are_in_use_than_there_are() -> None:
    working = planner(2)

    assert working.decide(busy=3, commands=True) == TurnDecision(turn_slots=0)


def test_commands_gather_while_a_turn_is_under_way() -> None:
    working = planner(3)
    assert working.decide(busy=2, commands=True) == TurnDecision(turn_slots=1)
    assert working.decide(busy=1, commands=True) == TurnDecision()

    working.turn_ended()

    assert working.decide(busy=2, commands=True) == TurnDecision(turn_slots=1)


def test_a_turn_that_found_nothing_is_followed_by_a_claim_that_waits() -> None:
    working = planner(3)
    working.decide(busy=2, commands=True)

    working.turn_ended()

    assert working.decide(busy=2) == TurnDecision(claim_slots=1)


def test_a_turn_does_not_claim_for_slots_that_a_waiting_claim_is_for() -> None:
    claiming = waiting(3, left=2)

    assert claiming.decide(busy=1, commands=True) == TurnDecision(turn_slots=0)


def test_a_turn_claims_for_slots_that_became_free_while_a_claim_waits() -> None:
    claiming = waiting(3, left=1)

    assert claiming.decide(busy=1, commands=True) == TurnDecision(turn_slots=1)


def test_a_source_that_cannot_join_them_gets_each_turn_at_once_and_without_a_claim() -> None:
    working = planner(2, joint=False)
    assert working.decide(busy=2, commands=True) == TurnDecision(turn_slots=0)
    assert working.decide(busy=2, commands=True) == TurnDecision(turn_slots=0)

    assert working.decide(busy=1) == TurnDecision(claim_slots=1)


def test_a_worker_that_stops_cancels_the_claim_and_still_sends_commands() -> None:
    claiming = planner(2)
    claiming.decide(busy=0)
    claiming.forbid_claims()

    assert claiming.decide(busy=0, commands=True) == TurnDecision(turn_slots=0, stop_claim=True)
    claiming.claim_ended()
    claiming.turn_ended()
    assert claiming.decide(busy=0) == TurnDecision()

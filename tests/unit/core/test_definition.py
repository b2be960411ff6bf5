"""Which definitions are accepted, and those that exist without being written."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.core.definitions.definition import (
    BUILTIN_DEFINITIONS,
    Definition,
    Isolation,
    RunnerKind,
)


def a_definition(**fields: Any) -> Definition:
    return Definition(**{"name": "translate", "runner": RunnerKind.PYTHON, **fields})


def test_a_name_and_a_runner_are_enough() -> None:
    definition = a_definition()

    assert (definition.queue, definition.timeout, definition.retry) == ("default", None, None)
    assert not definition.requires_review


def test_two_versions_have_the_same_content_if_nothing_else_differs() -> None:
    assert a_definition(version=1).content == a_definition(version=2).content
    assert a_definition(queue="mail").content != a_definition().content


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a/b"])
def test_a_name_that_no_address_could_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name must match"):
        a_definition(name=name)


@pytest.mark.parametrize("queue", ["", "a b", "x" * 65])
def test_a_queue_that_could_not_be_called_so_is_refused(queue: str) -> None:
    with pytest.raises(ValueError, match="queue must match"):
        a_definition(queue=queue)


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_timeout_that_no_task_could_meet_is_refused(seconds: int) -> None:
    with pytest.raises(ValueError, match="timeout must be greater than zero"):
        a_definition(timeout=timedelta(seconds=seconds))


def test_the_shortest_timeout_is_accepted() -> None:
    shortest = timedelta(microseconds=1)

    assert a_definition(timeout=shortest).timeout == shortest


def test_each_runner_can_be_used_without_a_definition_of_its_own() -> None:
    assert set(BUILTIN_DEFINITIONS) == {"command", "python"}
    assert all(definition.runner == name for name, definition in BUILTIN_DEFINITIONS.items())
    assert all(definition.version == 0 for definition in BUILTIN_DEFINITIONS.values())


def test_two_definitions_do_not_share_their_options() -> None:
    definition, other = a_definition(), a_definition()

    definition.options["module"] = "translate"

    assert other.options == {}


@pytest.mark.parametrize("fields", [{"isolation": Isolation.SPAWN}, {"pty": True}], ids=str)
def test_an_agent_is_forked_and_has_no_terminal(fields: dict[str, Any]) -> None:
    assert a_definition(runner=RunnerKind.AGENT).isolation is Isolation.FORK
    with pytest.raises(ValueError, match="an agent is run with isolation 'fork'"):
        a_definition(runner=RunnerKind.AGENT, **fields)

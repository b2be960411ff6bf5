"""Definitions in job files and from the API, and the plans of agents in them."""

from typing import Any

import pytest

from longshore.core.definitions.definition import unlisted_secrets
from longshore.core.definitions.reader import read_definition, split_job_file
from longshore.errors import InvalidJob, Problem

A = {"name": "a", "runner": "command"}
AGENT = {"name": "b", "runner": "agent", "options": {"prompt": "count the words"}}


def problems_of(value: Any) -> list[Problem]:
    with pytest.raises(InvalidJob) as refused:
        read_definition(value)
    return list(refused.value.problems)


def test_a_job_without_definitions_is_returned_as_it_is() -> None:
    job = {"tasks": []}

    assert split_job_file(job) == ([], job, [])
    assert split_job_file("text") == ([], "text", [])


def test_the_definitions_of_a_job_file_are_separated_from_its_job() -> None:
    definitions, job, problems = split_job_file({"definitions": [A], "tasks": []})

    assert ([item.name for item in definitions], job, problems) == (["a"], {"tasks": []}, [])


def test_problems_of_definitions_in_a_job_file_have_their_paths() -> None:
    _, _, problems = split_job_file({"definitions": {"a": {"runner": "x"}}, "tasks": []})

    assert [problem.path for problem in problems] == ["definitions.a.runner"]


def test_an_invalid_definition_is_refused_with_every_problem() -> None:
    assert [problem.path for problem in problems_of({"colour": "red"})] == [
        "colour",
        "name",
        "runner",
    ]


def test_a_valid_agent_is_accepted() -> None:
    assert read_definition(AGENT).options == {"prompt": "count the words"}


def test_problems_of_an_agents_plan_are_problems_of_its_options() -> None:
    (problem,) = problems_of({**AGENT, "options": {"prompt": 3}})

    assert problem.path == "options.prompt"


def test_an_agents_timeout_must_be_enough_for_its_steps() -> None:
    (problem,) = problems_of({**AGENT, "timeout": "2s"})

    assert problem.path == "timeout"


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        ("text", True),
        ({"from": "MY_SECRET"}, True),
        ({"from": "my-secret"}, False),
        ({"from": 1}, False),
        ({"from": "MY_SECRET", "else": ""}, False),
        ({}, False),
        (7, False),
    ],
)
def test_a_variable_is_text_or_the_name_of_a_secret(value: Any, *, valid: bool) -> None:
    document = {"name": "a", "runner": "command", "options": {"argv": ["x"], "env": {"X": value}}}

    if valid:
        expected = {"X": "MY_SECRET"} if isinstance(value, dict) else {}
        assert read_definition(document).secrets == expected
        return
    assert problems_of(document) == [
        Problem("options.env.X", "expected text, or {from: NAME} with the name of a secret")
    ]


def test_only_listed_secrets_are_given_to_a_task() -> None:
    variables = {"A": {"from": "LISTED"}, "B": {"from": "OTHER"}, "C": "text"}
    definition = read_definition(
        {"name": "a", "runner": "command", "options": {"argv": ["x"], "env": variables}}
    )

    (problem,) = unlisted_secrets(definition, ["LISTED"])

    assert problem.path == "options.env.B"
    assert "worker.task_secrets" in problem.message


def test_a_pool_gives_no_secrets() -> None:
    options = {"function": "m:f", "env": {"A": {"from": "LISTED"}}}
    document = {"name": "a", "runner": "python", "isolation": "pool", "options": options}

    with pytest.raises(InvalidJob, match="without secrets"):
        read_definition(document)

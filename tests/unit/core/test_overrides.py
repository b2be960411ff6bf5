"""What an input may change of the options of its definition."""

from typing import Any

import pytest

from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, OPTION_NAMES, merge_input
from longshore.core.definitions.reader import read_definition
from longshore.core.jobs.submission import PROBLEM_LIMIT, override_problems
from longshore.errors import InvalidJob

FIXED = {"argv": ["echo"], "env": {"MODE": "safe"}}
CALL = {"function": "shop:report", "kwargs": {"folder": "/srv"}}


@pytest.mark.parametrize(
    ("runner", "options", "overridable", "task_input", "refused"),
    [
        ("command", FIXED, (), {}, []),
        ("command", FIXED, (), {"rows": 3, "function": "any"}, []),
        ("command", FIXED, (), {"argv": ["sh"], "cwd": "/"}, ["argv", "cwd"]),
        ("command", {}, (), {"argv": ["sh"]}, ["argv"]),
        ("command", {}, (), {"argv": None}, ["argv"]),
        ("command", FIXED, (), {"env": {"MODE": "x", "PATH": "x"}}, ["env.MODE", "env.PATH"]),
        ("command", FIXED, (), {"env": {}}, []),
        ("command", FIXED, (), {"env": ["PATH"]}, ["env"]),
        ("command", {"env": "odd"}, (), {"env": {"PATH": "x"}}, ["env"]),
        ("command", FIXED, ("env.REGION",), {"env": {"REGION": "x"}}, []),
        ("command", FIXED, ("env.REGION",), {"env": {"MODE": "x"}}, ["env.MODE"]),
        ("command", FIXED, ("env.REGION",), {"env": "REGION"}, ["env"]),
        ("command", FIXED, ("env",), {"env": {"MODE": "x"}}, []),
        ("command", FIXED, ("argv",), {"argv": ["sh"]}, []),
        ("command", FIXED, ("argv",), {"cwd": "/"}, ["cwd"]),
        ("python", CALL, (), {"function": "subprocess:getoutput"}, ["function"]),
        ("python", CALL, (), {"path": ["/tmp"], "env": {"A": "b"}}, ["path", "env.A"]),
        ("python", CALL, (), {"args": [1], "kwargs": {"region": "north"}}, []),
        ("python", CALL, (), {"kwargs": {"folder": "/etc"}}, ["kwargs.folder"]),
        ("python", CALL, ("kwargs.folder",), {"kwargs": {"folder": "/etc"}}, []),
        ("python", CALL, ("kwargs",), {"kwargs": {"folder": "/etc"}}, []),
        ("python", CALL, (), {"kwargs": ["folder"]}, ["kwargs"]),
        ("python", {"args": [1]}, (), {"args": [2]}, ["args"]),
        ("python", {"args": [1]}, ("args",), {"args": [2]}, []),
        ("python", {"kwargs": None}, (), {"kwargs": {"a": 1}}, []),
        ("python", {}, (), {"kwargs": None}, []),
        ("agent", {"prompt": "x"}, (), {"prompt": "y", "argv": ["sh"]}, []),
    ],
)
def test_an_input_sets_only_what_is_overridable_and_arguments_that_are_free(
    runner: str,
    options: dict[str, Any],
    overridable: tuple[str, ...],
    task_input: dict[str, Any],
    refused: list[str],
) -> None:
    assert merge_input(runner, options, overridable, task_input)[1] == refused


def test_variables_and_keyword_arguments_are_combined_and_the_rest_is_replaced() -> None:
    options = {"argv": ["a"], "env": {"MODE": "safe", "REGION": "south"}, "pages": 1}
    task_input = {"argv": ["b"], "env": {"REGION": "north"}, "pages": 2}

    merged, refused = merge_input("command", options, ("argv", "env.REGION"), task_input)

    assert refused == []
    assert merged == {"argv": ["b"], "env": {"MODE": "safe", "REGION": "north"}, "pages": 1}
    assert options["env"] == {"MODE": "safe", "REGION": "south"}


def test_an_agents_options_are_never_changed() -> None:
    assert merge_input("agent", {"prompt": "x"}, (), {"prompt": "y"})[0] == {"prompt": "x"}


@pytest.mark.parametrize("name", BUILTIN_DEFINITIONS)
def test_built_in_definitions_let_an_input_set_everything(name: str) -> None:
    definition = BUILTIN_DEFINITIONS[name]
    task_input = dict.fromkeys(OPTION_NAMES[name], "any")

    merged, refused = merge_input(name, definition.options, definition.overridable, task_input)

    assert (merged, refused) == (task_input, [])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"overridable": ["function"]},
            "expected some of argv, env, cwd, env.NAME, not 'function'",
        ),
        ({"overridable": ["env."]}, "not 'env.'"),
        ({"overridable": ["argv.x"]}, "not 'argv.x'"),
        ({"overridable": ["argv."]}, "not 'argv.'"),
        ({"overridable": "argv"}, "expected a list of texts"),
        ({"overridable": [1]}, "expected a list of texts"),
        (
            {"runner": "agent", "options": {"prompt": "x"}, "overridable": ["prompt"]},
            "the input of an agent sets no options",
        ),
    ],
)
def test_a_definition_cannot_make_overridable_what_its_runner_does_not_have(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidJob) as refused:
        read_definition({"name": "a", "runner": "command", **fields})

    (problem,) = refused.value.problems
    assert problem.path == "overridable"
    assert message in problem.message


def test_overridable_options_are_read() -> None:
    fields = {"runner": "python", "overridable": ["kwargs.region", "env", "path"]}

    assert read_definition({"name": "a", **fields}).overridable == ("kwargs.region", "env", "path")
    agent = {"name": "a", "runner": "agent", "options": {"prompt": "x"}, "overridable": []}
    assert read_definition(agent).overridable == ()


def test_the_problems_of_an_input_are_bounded_and_their_names_short() -> None:
    definition = read_definition({"name": "a", "runner": "command"})
    env = {f"{number}{'x' * 1000}": "" for number in range(PROBLEM_LIMIT + 5)}

    problems = override_problems(3, definition, {"env": env})

    assert len(problems) == PROBLEM_LIMIT
    assert problems[0].path.startswith("tasks[3].input.env.0xx")
    assert len(problems[0].path) + len(problems[0].message) < 700
    assert override_problems(0, definition, None) == []
    assert override_problems(0, definition, "argv") == []

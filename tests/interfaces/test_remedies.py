"""Remedies are spelled as commands, and alerts spell the same commands."""

from pathlib import Path

import pytest

from longshore.adapters.alerts import delivery
from longshore.core.budgets import BudgetUnit
from longshore.core.explain import Remedy, RemedyAction
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.main import main
from longshore.services.documents import command_of


@pytest.mark.parametrize(
    ("remedy", "command"),
    [
        (Remedy(RemedyAction.RESUME_JOB, "j"), "longshore resume j"),
        (Remedy(RemedyAction.RESUME_QUEUE, "q"), "longshore queues resume q"),
        (Remedy(RemedyAction.START_WORKER, "q"), "longshore worker --queue q"),
        (Remedy(RemedyAction.APPROVE_TASK, "t"), "longshore approve t"),
        (Remedy(RemedyAction.LIST_JOB_TASKS, "j"), "longshore tasks --job j"),
        (
            Remedy(RemedyAction.ADD_BUDGET, "t", BudgetUnit.TOKENS),
            "longshore budget add t --tokens 100000",
        ),
        (
            Remedy(RemedyAction.ADD_BUDGET, None, BudgetUnit.MINUTES),
            "longshore budget add today --minutes 30",
        ),
    ],
)
def test_a_remedy_is_spelled_as_a_command(remedy: Remedy, command: str) -> None:
    assert command_of(remedy) == command


def test_every_action_has_a_command() -> None:
    assert all(command_of(Remedy(action, "x")) for action in RemedyAction)


def test_alerts_name_the_same_command_for_a_budget() -> None:
    add = command_of(Remedy(RemedyAction.ADD_BUDGET, "ID", BudgetUnit.USD))

    assert add.replace("5", "N") == delivery.ADD_BUDGET_COMMAND


@pytest.mark.parametrize(
    "command", [delivery.LIST_DEAD_LETTERS_COMMAND, delivery.LIST_PARKED_TASKS_COMMAND]
)
def test_alerts_name_commands_that_exist(command: str, tmp_path: Path) -> None:
    arguments = command.removeprefix("longshore ").split()

    # Without a data folder, a valid command line ends so.
    assert main([*arguments, "--data-dir", str(tmp_path / "none")]) == ExitCode.NOT_FOUND

"""The commands that ``why`` and alerts name exist."""

from pathlib import Path

import pytest

from longshore.adapters.alerts import delivery
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.main import main


@pytest.mark.parametrize(
    "command",
    [
        delivery.LIST_DEAD_LETTERS_COMMAND,
        delivery.LIST_PARKED_TASKS_COMMAND,
        delivery.ADD_BUDGET_COMMAND.replace("N", "5"),
        "longshore resume j",
        "longshore queues resume q",
        "longshore worker --queue q --help",
        "longshore approve t",
        "longshore tasks --job j",
        "longshore budget add t --tokens 100000",
        "longshore budget add today --minutes 30",
    ],
)
def test_the_commands_that_remedies_and_alerts_name_exist(command: str, tmp_path: Path) -> None:
    arguments = command.removeprefix("longshore ").split()

    # Without a data folder, a valid command line ends so.
    expected = ExitCode.OK if "--help" in arguments else ExitCode.NOT_FOUND
    assert main([*arguments, "--data-dir", str(tmp_path / "none")]) == expected

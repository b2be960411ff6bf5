"""``longshore worker --app``: modules are checked before any task is taken."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from longshore.errors import ConfigurationError
from longshore.interfaces.cli.commands.worker import check_app_modules
from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import Cli, CommandResult

Inside = Callable[..., CommandResult]


@pytest.fixture
def _fresh_modules() -> object:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.usefixtures("_fresh_modules")
def test_a_module_is_found_in_the_folder_or_among_the_installed_packages(tmp_path: Path) -> None:
    (tmp_path / "shop_of_a_test").mkdir()
    (tmp_path / "shop_of_a_test" / "__init__.py").touch()
    # Found but not imported: the process that runs tasks imports it.
    (tmp_path / "shop_of_a_test" / "tasks.py").write_text("raise SystemExit(1)")
    path = list(sys.path)

    check_app_modules(("shop_of_a_test.tasks", "json.decoder"), tmp_path)

    assert sys.path == path


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        ("nowhere_to_be_found", "no module 'nowhere_to_be_found'"),
        ("nowhere_to_be_found.tasks", "no module 'nowhere_to_be_found.tasks'"),
        ("json.nothing", "no module 'json.nothing'"),
        ("nowhere_to_be_found.py", "leave out the .py"),
        ("broken_in_a_test.tasks", r"'broken_in_a_test.tasks' cannot be imported: ZeroDivision"),
    ],
)
@pytest.mark.usefixtures("_fresh_modules")
def test_a_missing_module_is_named(tmp_path: Path, module: str, problem: str) -> None:
    (tmp_path / "broken_in_a_test").mkdir()
    (tmp_path / "broken_in_a_test" / "__init__.py").write_text("1 / 0")

    with pytest.raises(ConfigurationError, match=problem):
        check_app_modules((module,), tmp_path)


def test_all_missing_modules_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_app_modules(("nowhere_1", "json", "nowhere_2"), tmp_path)

    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("more", [(), ("--processes", "2")])
def test_a_worker_without_its_modules_does_not_start(
    cli: Cli, inside: Inside, more: tuple[str, ...]
) -> None:
    folder_options = ("--data-dir", str(cli.folder / ".longshore"))

    answer = inside("worker", "--app", "json", "--app", "nowhere_1", *more, *folder_options)

    assert answer.code == ExitCode.USAGE
    assert "worker.app: no module 'nowhere_1'" in answer.err
    assert list(cli.folder.iterdir()) == []


def test_a_module_in_the_current_folder_is_found(cli: Cli) -> None:
    (cli.folder / "shop.py").touch()

    answer = cli("worker", "--app", "shop", "--burst")

    assert answer.code == 0

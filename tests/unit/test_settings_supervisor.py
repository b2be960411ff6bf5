"""Settings of the supervisor, of its log file, and of the modules that a worker knows."""

from datetime import time
from pathlib import Path

import pytest

from longshore.core.supervision import SupervisionPolicy
from longshore.errors import ConfigurationError
from longshore.settings import Settings
from tests.unit.settings_loading import load_settings_for_test, row


def refusal(folder: Path, **environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings_for_test(folder, **environ)
    (problem,) = caught.value.problems
    return problem


def test_the_defaults_are_those_of_the_policy() -> None:
    supervisor, policy = Settings().supervisor, SupervisionPolicy()

    assert supervisor.restart_delay == policy.restart_delay
    assert supervisor.restart_limit == policy.restart_limit
    assert supervisor.memory_ceiling == policy.memory_ceiling_bytes == 2**30
    assert supervisor.recycle_at is policy.recycle_at is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("03:30", time(3, 30)),
        ("23:59:59", time(23, 59, 59)),
        ("00:00", time(0)),
        ("none", None),
    ],
)
def test_a_time_of_day_is_read_and_shown_as_people_write_it(
    tmp_path: Path, text: str, expected: time | None
) -> None:
    loaded = load_settings_for_test(tmp_path, LONGSHORE_SUPERVISOR_RECYCLE_AT=text)

    assert loaded.settings.supervisor.recycle_at == expected
    assert row(loaded, "supervisor.recycle_at").value == text


@pytest.mark.parametrize("text", ["3:30", "03.30", "24:00", "12:60", "noon", "03:30:00.5", "0330"])
def test_what_is_no_time_of_day_is_refused(tmp_path: Path, text: str) -> None:
    problem = refusal(tmp_path, LONGSHORE_SUPERVISOR_RECYCLE_AT=text)

    assert problem.startswith("supervisor.recycle_at: ")


def test_a_time_of_day_can_be_one_of_toml_and_nothing_else(tmp_path: Path) -> None:
    loaded = load_settings_for_test(tmp_path, file="[supervisor]\nrecycle_at = 03:30:00\n")

    assert loaded.settings.supervisor.recycle_at == time(3, 30)
    with pytest.raises(ConfigurationError, match=r"12600 is not a time of day: write it like"):
        load_settings_for_test(tmp_path, file="[supervisor]\nrecycle_at = 12600\n")


def test_the_log_file_may_be_below_the_home_folder_or_none(tmp_path: Path) -> None:
    below_home = load_settings_for_test(tmp_path, LONGSHORE_LOG_FILE="~/x.log").settings.log_file
    none = load_settings_for_test(
        tmp_path, LONGSHORE_LOG_FILE="none", file="log_file = 'a.log'"
    ).settings.log_file

    assert below_home == Path("~/x.log").expanduser()
    assert none is None


def test_modules_of_an_app_are_read_like_other_lists(tmp_path: Path) -> None:
    from_environment = load_settings_for_test(tmp_path, LONGSHORE_WORKER_APP="shop.tasks, mail")
    from_file = load_settings_for_test(tmp_path, file="[worker]\napp = ['shop.tasks', 'mail']")

    assert from_environment.settings.worker.app == ("shop.tasks", "mail")
    assert from_file.settings.worker.app == ("shop.tasks", "mail")
    assert row(from_file, "worker.app").value == "shop.tasks,mail"


@pytest.mark.parametrize("name", ["shop/tasks", "shop.tasks:run", ".tasks", "shop tasks", "1st"])
def test_what_cannot_be_the_name_of_a_module_is_refused(tmp_path: Path, name: str) -> None:
    problem = refusal(tmp_path, LONGSHORE_WORKER_APP=name)

    assert problem.startswith(f"worker.app: {name!r} is not a module name")


def test_no_variable_at_all_can_be_passed_on_by_name(tmp_path: Path) -> None:
    loaded = load_settings_for_test(tmp_path, LONGSHORE_WORKER_PASS_ENVIRONMENT="none")

    assert loaded.settings.worker.pass_environment == ()
    assert row(loaded, "worker.pass_environment").value == "none"


def test_a_supervisor_waits_longer_than_a_worker_may_take_to_stop() -> None:
    assert SupervisionPolicy().kill_after > Settings().stop_timeout


def test_on_aws_a_stop_may_last_as_long_as_a_poll_that_is_out(tmp_path: Path) -> None:
    values = {"LONGSHORE_WORKER_DRAIN_GRACE": "0s", "LONGSHORE_WORKER_POLL_WAIT": "20s"}

    here = load_settings_for_test(tmp_path, **values).settings
    on_aws = load_settings_for_test(tmp_path, **values, LONGSHORE_BACKEND="aws").settings

    assert here.stop_timeout == here.worker.kill_grace
    assert on_aws.stop_timeout == on_aws.worker.poll_wait

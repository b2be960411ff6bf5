"""Rotating log files, and the lines of workers in them."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.errors import ConfigurationError
from longshore.interfaces.cli.log_records import log_to_file, with_worker_number, write_worker_line
from longshore.settings import Settings

logger = logging.getLogger("longshore.test")


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.setLevel(logging.INFO)
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers, root.level = handlers, level


def test_records_are_written_to_the_file_as_json_unless_text_is_set(tmp_path: Path) -> None:
    log_to_file(Settings(), tmp_path / "a.log")
    logger.info("one", extra={"task_id": "t"})
    logging.getLogger().handlers[0].close()
    log_to_file(Settings(log_format="text"), tmp_path / "b.log")
    logger.info("two", extra={"task_id": "t"})

    record = json.loads((tmp_path / "a.log").read_text())
    assert (record["event"], record["task_id"]) == ("one", "t")
    assert (tmp_path / "b.log").read_text().endswith("two  task_id=t\n")


def test_a_full_file_is_rotated_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    log_to_file(Settings(), tmp_path / "a.log", max_bytes=1024)

    for number in range(99):
        write_worker_line(1, f"line {number:02} " + "x" * 90)

    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["a.log", *(f"a.log.{n}" for n in range(1, 6))]
    assert all(file.stat().st_size <= 1024 for file in files)
    assert "line 98" in files[0].read_text().splitlines()[-1]


def test_the_folder_of_the_log_file_is_created(tmp_path: Path) -> None:
    log_to_file(Settings(), tmp_path / "logs" / "longshore" / "a.log")

    assert (tmp_path / "logs" / "longshore" / "a.log").exists()


def test_a_log_file_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"log_file: .* cannot be written: .+"):
        log_to_file(Settings(), tmp_path / "file" / "a.log")


def test_lines_of_workers_and_own_records_are_in_one_file(tmp_path: Path) -> None:
    log_to_file(Settings(), tmp_path / "a.log")

    logger.info("worker.started", extra={"worker": 2})
    write_worker_line(2, '{"event": "lease.lost"}')
    write_worker_line(2, "longshore: stopping")

    first, second, third = (tmp_path / "a.log").read_text().splitlines()
    assert json.loads(first)["event"] == "worker.started"
    assert json.loads(second) == {"worker": 2, "event": "lease.lost"}
    assert third == "[2] longshore: stopping"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain", "[3] plain"),
        ("", "[3] "),
        ('{"a": 1}', '{"worker": 3, "a": 1}'),
        ("{}", "[3] {}"),
        ('{"cut', '[3] {"cut'),
    ],
)
def test_a_line_gets_its_number_and_json_stays_json(line: str, expected: str) -> None:
    assert with_worker_number(3, line) == expected

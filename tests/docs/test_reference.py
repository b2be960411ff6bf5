"""The pages agree with the code: nothing is missing from them, and no link is broken."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.generate import FOLDER, commands, error_classes, event_docs, pages
from longshore.core.definitions.reader import split_job_file
from longshore.core.jobs.submission import read_job
from longshore.errors import Fail, InvalidJob, LongshoreError, Retry
from longshore.settings import (
    COMPATIBLE_VARIABLES,
    ENVIRONMENT_ALIASES,
    FIELDS,
    IGNORED_VARIABLES,
    descriptions,
    variable_of,
)

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "longshore"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TEST_FILE = re.compile(r"\]\(((?:tests|src/longshore/testing)/[\w/]+\.py)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def written(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def all_below(kind: type[Exception]) -> Iterator[type[Exception]]:
    # Errors that other modules derive are not part of the page.
    if kind.__module__ == LongshoreError.__module__:
        yield kind
        for below in kind.__subclasses__():
            yield from all_below(below)


def anchors_of(page: Path) -> set[str]:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", sorted(pages()))
def test_the_generated_page_is_up_to_date(name: str) -> None:
    assert written(name) == pages()[name], "run `make docs`"


def test_writing_the_pages_twice_gives_the_same_bytes() -> None:
    assert pages() == pages()


def test_every_page_of_the_reference_is_generated_or_compared_with_the_code() -> None:
    # tests/docs/test_log_events.py compares this page with the log calls.
    assert {page.name for page in FOLDER.iterdir()} == {*pages(), "log-events.md"}


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_its_row_with_its_variable_and_meaning(name: str) -> None:
    rows = [line for line in written("settings.md").splitlines() if line.startswith(f"| `{name}` ")]

    assert len(rows) == 1
    assert f"`{variable_of(name)}`" in rows[0]
    assert descriptions()[name] in rows[0]


def test_every_variable_of_another_system_has_its_row() -> None:
    page = written("settings.md")

    names = {**ENVIRONMENT_ALIASES, **COMPATIBLE_VARIABLES, **IGNORED_VARIABLES}
    assert [name for name in names if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("event", event_docs(), ids=lambda event: event.name)
def test_every_event_has_its_section_with_every_property(event: Any) -> None:
    _, _, after = written("events.md").partition(f"\n## {event.name}\n")
    section = after.partition("\n## ")[0]

    assert event.when.replace("``", "`") in section
    assert [part.name for part in event.properties if f"| `{part.name}` |" not in section] == []


@pytest.mark.parametrize(
    "error", [*all_below(LongshoreError), Retry, Fail], ids=lambda error: error.__name__
)
def test_every_error_has_its_section_and_its_line_in_the_tree(error: type[Exception]) -> None:
    page = written("errors.md")
    tree, _, sections = page.partition("\n## ")

    assert re.search(rf"\b{error.__name__}\b", tree)
    assert f"## {error.__name__}\n" in f"\n## {sections}"
    assert error in error_classes()
    assert error.__doc__


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_command_has_its_section(name: str) -> None:
    assert f"\n## {name}\n" in written("cli.md")


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_command_and_each_of_its_parameters_has_help(name: str, command: Any) -> None:
    without = [param.name for param in command.params if not getattr(param, "help", None)]

    assert command.help
    assert without == []


def test_the_how_to_names_every_field_that_a_job_file_may_have() -> None:
    document = {"definitions": [{"wrong": 1}], "tasks": [{"wrong": 1}]}
    _, job, problems = split_job_file(document)
    with pytest.raises(InvalidJob) as refused:
        read_job(job, limit=1)
    messages = [problem.message for problem in (*problems, *refused.value.problems)]
    lists = [message for message in messages if "expected one of" in message]

    page = (ROOT / "docs" / "howto" / "define-a-task.md").read_text(encoding="utf-8")
    fields = {name for text in lists for name in text.rpartition("one of ")[2].split(", ")}

    assert len(lists) == 2
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    links = _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    broken = []
    for link in links:
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)

    assert broken == []


def test_every_path_that_the_architecture_names_exists() -> None:
    text = _FENCE.sub("", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    tables = [line for line in text.splitlines() if line.startswith("|")]
    named = re.findall(r"`([\w/*]+(?:\.py|/))`", "\n".join(tables))

    assert named
    missing = [
        path
        for path in named
        if not any((ROOT if path.startswith("verification/") else PACKAGE).glob(path))
    ]
    assert missing == []


def test_every_invariant_is_in_the_architecture_with_its_tests() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("\n## Invariants\n")[2].partition("\n## ")[0]
    _, *invariants = re.split(r"^(?=\d+\. )", section, flags=re.MULTILINE)
    files = [_TEST_FILE.findall(invariant) for invariant in invariants]

    assert [text.partition(".")[0] for text in invariants] == [str(n) for n in range(1, 16)]
    assert all(files)
    assert [
        path
        for paths in files
        for path in paths
        if not re.search(r"def test_|\.TestCase\b", (ROOT / path).read_text(encoding="utf-8"))
    ] == []


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")

    pages_of_decisions = sorted(page.name for page in folder.glob("0*.md"))

    assert [page for page in pages_of_decisions if f"({page})" not in listed] == []

"""The pages say what the code says: nothing is missing from them, and no link leads nowhere."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.generate import FOLDER, commands, error_classes, pages
from longshore.core.events.codec import describe as describe_events
from longshore.errors import Fail, InvalidJob, LongshoreError, Retry
from longshore.interfaces.job_files import accept_file
from longshore.settings import FIELDS, FOREIGN_NAMES, variable_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "longshore"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_NAMED_TEST = re.compile(r"\[`(\w+)`\]\(([\w/.]+\.py)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def written(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def all_below(kind: type[Exception]) -> Iterator[type[Exception]]:
    # Those that other modules derive for themselves are no business of the page.
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


def test_there_is_no_page_that_nobody_writes() -> None:
    assert {page.name for page in FOLDER.iterdir()} == set(pages())


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_its_row_with_its_variable_and_meaning(name: str) -> None:
    rows = [line for line in written("settings.md").splitlines() if line.startswith(f"| `{name}` ")]

    assert len(rows) == 1
    assert f"`{variable_of(name)}`" in rows[0]
    assert FIELDS[name].description in rows[0]


def test_every_name_of_another_system_has_its_row() -> None:
    page = written("settings.md")

    assert [name for name in FOREIGN_NAMES if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("event", describe_events(), ids=lambda event: event.name)
def test_every_event_has_its_section_with_every_property(event: Any) -> None:
    _, _, after = written("events.md").partition(f"\n## {event.name}\n")
    section = after.partition("\n## ")[0]

    assert event.when.replace("``", "`") in section
    assert [part.name for part in event.properties if f"| `{part.name}` |" not in section] == []


@pytest.mark.parametrize(
    "error", [*all_below(LongshoreError), Retry, Fail], ids=lambda error: error.__name__
)
def test_every_error_has_its_section_and_its_place_in_the_tree(error: type[Exception]) -> None:
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
    with pytest.raises(InvalidJob) as refused:
        # Refused before anything is looked up or stored, so there is nothing to hand in.
        asyncio.run(
            accept_file(
                document,
                tenant="t",
                request_id="r",
                producer=None,
                definitions=None,
                task_limit=1,
            )
        )
    lists = [one.message for one in refused.value.problems if "expected one of" in one.message]

    page = (ROOT / "docs" / "howto" / "define-a-task.md").read_text(encoding="utf-8")
    fields = {name for text in lists for name in text.rpartition("one of ")[2].split(", ")}

    assert len(lists) == 2
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    lost = []
    for link in links:
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            lost.append(link)

    assert lost == []


def test_every_test_that_the_architecture_names_exists() -> None:
    named = _NAMED_TEST.findall((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    missing = [
        f"{path}: {name}"
        for name, path in named
        if not re.search(
            rf"^\s*(?:async )?(?:def|class) {name}\b|^{name} = ",
            (ROOT / path).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]

    assert named
    assert missing == []


def test_every_place_that_the_architecture_names_exists() -> None:
    text = _FENCE.sub("", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    tables = [line for line in text.splitlines() if line.startswith("|")]
    named = re.findall(r"`([\w/*]+(?:\.py|/))`", "\n".join(tables))

    assert named
    assert [place for place in named if not any(PACKAGE.glob(place))] == []


def test_every_invariant_is_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("\n## Invariants\n")[2].partition("\n## ")[0]

    assert re.findall(r"^(\d+)\. ", section, re.MULTILINE) == [str(n) for n in range(1, 15)]


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")

    pages_of_decisions = sorted(page.name for page in folder.glob("0*.md"))

    assert [page for page in pages_of_decisions if f"({page})" not in listed] == []

"""Checks of the project as a whole: its pages, lock files and test environment."""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ["requirements.txt", "requirements-dev.txt"]
UV_LOCK = "requirements-uv.txt"
PAGES = ["README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "LICENSE"]
# Plans belong in issues, where they are read.
FORBIDDEN_WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_NAME = re.compile(r"^([a-z0-9][a-z0-9._-]*)==", re.MULTILINE)


def _locked_names(lock: str) -> set[str]:
    return set(_NAME.findall((ROOT / lock).read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES)
def test_the_page_exists_and_is_not_empty(page: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("lock", [*LOCKS, UV_LOCK])
def test_the_lock_names_no_host_and_no_path(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")

    assert [line for line in text.splitlines() if "://" in line or "file:" in line] == []
    assert [line for line in text.splitlines() if line.startswith("-")] == []


@pytest.mark.parametrize("lock", [*LOCKS, UV_LOCK])
def test_every_locked_requirement_has_a_hash(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")

    requirements = re.split(r"\n(?=[a-z0-9])", text)

    assert [item.split()[0] for item in requirements if "--hash=sha256:" not in item] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_holds_every_declared_dependency_and_the_build_backend(lock: str) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = [*declared["project"]["dependencies"], *declared["dependency-groups"]["build"]]

    names = {re.split(r"[\[<>=!~ ;]", requirement)[0].lower() for requirement in requirements}

    assert names - _locked_names(lock) == set()


def test_pip_installs_only_what_is_pinned_by_hash() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    installs = [line for line in text.splitlines() if re.search(r"-m pip .*install", line)]

    assert _locked_names(UV_LOCK) == {"uv"}
    assert [line for line in installs if f"--require-hashes -r {UV_LOCK}" not in line] == []
    assert installs


def test_the_development_lock_holds_all_of_the_runtime_lock() -> None:
    assert _locked_names("requirements.txt") <= _locked_names("requirements-dev.txt")


def test_the_source_has_no_notes_to_self() -> None:
    notes = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if FORBIDDEN_WORDS.search(line)
    ]

    assert notes == []


@pytest.fixture(scope="module")
def _foreign_variables() -> Iterator[None]:
    # The scope is wider than that of the isolating fixture, so these are set before it runs.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_PROFILE", "developer")
        patch.setenv("LONGSHORE_WORKER_CONCURRENCY", "99")
        yield


@pytest.mark.usefixtures("_foreign_variables")
def test_a_test_sees_none_of_the_developers_own_settings() -> None:
    foreign = {"AWS_PROFILE", "LONGSHORE_WORKER_CONCURRENCY"}

    # Child processes inherit os.environ.
    assert foreign & set(os.environ) == set()  # noqa: TID251

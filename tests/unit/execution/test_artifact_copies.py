"""Files that a task wants to keep: copies in the attempt's folder, whole or not at all."""

import os
from pathlib import Path

import pytest

from longshore.execution.runners.artifacts import copy_artifact


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    (tmp_path / "attempt-1").mkdir()
    return tmp_path / "attempt-1" / "artifacts"


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the task works."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"text of {name}")


def file_contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("path", "name", "stored"),
    [
        ("a.csv", None, "a.csv"),
        ("deep/b", None, "b"),
        ("./deep/../a.csv", None, "a.csv"),
        ("a.csv", "reports/2030.csv", "reports/2030.csv"),
        ("a.csv", "/reports/./x/", "reports/x"),
    ],
)
def test_a_file_is_copied_under_its_name_or_the_one_it_is_given(
    path: str, name: str | None, stored: str, working_folder: Path, artifacts: Path
) -> None:
    write(working_folder, "a.csv", "deep/b")

    assert copy_artifact(path, str(artifacts), name) == (stored, [])
    assert file_contents(artifacts) == {stored: (working_folder / path).read_text()}


@pytest.mark.parametrize("name", ["../../out", "a/../../../out", "..", "two\nlines"])
def test_no_name_leads_out_of_the_folder(name: str, working_folder: Path, artifacts: Path) -> None:
    write(working_folder, "a")

    stored, _ = copy_artifact("a", str(artifacts), name)

    assert file_contents(artifacts) == {stored: "text of a"}
    assert sorted(path.name for path in artifacts.parent.iterdir()) == ["artifacts"]
    assert stored.isprintable()


def test_a_copy_keeps_the_content_and_a_later_copy_replaces_it(
    working_folder: Path, artifacts: Path
) -> None:
    write(working_folder, "a")
    copy_artifact("a", str(artifacts))
    (working_folder / "a").write_text("changed")
    before = file_contents(artifacts)

    copy_artifact("a", str(artifacts))

    assert (before, file_contents(artifacts)) == ({"a": "text of a"}, {"a": "changed"})


def test_each_file_of_a_folder_is_copied(working_folder: Path, artifacts: Path) -> None:
    write(working_folder, "reports/a", "reports/deep/b", "other")

    assert copy_artifact("reports", str(artifacts)) == ("reports", [])
    assert copy_artifact("reports/", str(artifacts), "again") == ("again", [])
    assert list(file_contents(artifacts)) == [
        "again/a",
        "again/deep/b",
        "reports/a",
        "reports/deep/b",
    ]


def test_only_files_inside_a_folder_are_copied(
    working_folder: Path, artifacts: Path, tmp_path: Path
) -> None:
    write(working_folder, "reports/a", "reports/deep/b")
    write(tmp_path, "secret", "secrets/key")
    (working_folder / "reports" / "inside").symlink_to("deep/b")
    (working_folder / "reports" / "outside").symlink_to(tmp_path / "secret")
    (working_folder / "reports" / "outside-folder").symlink_to(tmp_path / "secrets")
    (working_folder / "reports" / "gone").symlink_to("missing")
    os.mkfifo(working_folder / "reports" / "pipe")

    _, skipped = copy_artifact("reports", str(artifacts))

    assert list(file_contents(artifacts)) == ["reports/a", "reports/deep/b", "reports/inside"]
    assert sorted(skipped) == ["gone", "outside", "outside-folder", "pipe"]


def test_a_link_that_is_named_outright_is_followed(
    working_folder: Path, artifacts: Path, tmp_path: Path
) -> None:
    write(tmp_path, "elsewhere")
    (working_folder / "link").symlink_to(tmp_path / "elsewhere")

    assert copy_artifact("link", str(artifacts)) == ("link", [])
    assert file_contents(artifacts) == {"link": "text of elsewhere"}


def test_a_file_that_is_an_artifact_already_is_not_copied(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(artifacts, "deep/a", "b")
    monkeypatch.chdir(artifacts.parent)

    assert copy_artifact("artifacts/deep/a", str(artifacts)) == ("deep/a", [])
    assert copy_artifact("artifacts/deep", str(artifacts)) == ("deep", [])
    assert copy_artifact("artifacts", str(artifacts)) == (".", [])
    assert list(file_contents(artifacts)) == ["b", "deep/a"]


def test_the_attempt_s_own_folder_can_be_stored(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(artifacts, "a")
    write(artifacts.parent, "notes")
    monkeypatch.chdir(artifacts.parent)

    copy_artifact(".", str(artifacts), "all")

    assert list(file_contents(artifacts)) == ["a", "all/artifacts/a", "all/notes"]


def test_a_missing_file_cannot_be_an_artifact(working_folder: Path, artifacts: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        copy_artifact("missing", str(artifacts))

    assert not artifacts.exists()


def test_a_special_file_cannot_be_an_artifact(working_folder: Path, artifacts: Path) -> None:
    os.mkfifo(working_folder / "pipe")

    with pytest.raises(ValueError, match="pipe is neither a file nor a folder"):
        copy_artifact("pipe", str(artifacts))


def test_a_copy_that_breaks_off_leaves_nothing_that_looks_like_one(
    working_folder: Path, artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(working_folder, "a")

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", no_room)

    with pytest.raises(OSError, match="No space"):
        copy_artifact("a", str(artifacts))

    assert file_contents(artifacts.parent) == {}

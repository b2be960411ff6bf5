"""Files that a task wants to keep: copies in the attempt's folder, whole or not at all."""

import os
from pathlib import Path

import pytest

from longshore.runners.artifacts import Kept, keep


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    (tmp_path / "attempt-1").mkdir()
    return tmp_path / "attempt-1" / "artifacts"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the task works."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"text of {name}")


def found(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("path", "name", "kept"),
    [
        ("a.csv", None, "a.csv"),
        ("deep/b", None, "b"),
        ("./deep/../a.csv", None, "a.csv"),
        ("a.csv", "reports/2030.csv", "reports/2030.csv"),
        ("a.csv", "/reports/./x/", "reports/x"),
    ],
)
def test_a_file_is_copied_under_its_name_or_the_one_it_is_given(
    path: str, name: str | None, kept: str, here: Path, artifacts: Path
) -> None:
    write(here, "a.csv", "deep/b")

    assert keep(path, str(artifacts), name) == Kept(kept)
    assert found(artifacts) == {kept: (here / path).read_text()}


@pytest.mark.parametrize("name", ["../../out", "a/../../../out", "..", "two\nlines"])
def test_no_name_leads_out_of_the_folder(name: str, here: Path, artifacts: Path) -> None:
    write(here, "a")

    kept = keep("a", str(artifacts), name)

    assert found(artifacts) == {kept.name: "text of a"}
    assert sorted(path.name for path in artifacts.parent.iterdir()) == ["artifacts"]
    assert kept.name.isprintable()


def test_a_copy_stays_what_the_file_was_and_the_last_one_stands(
    here: Path, artifacts: Path
) -> None:
    write(here, "a")
    keep("a", str(artifacts))
    (here / "a").write_text("changed")
    before = found(artifacts)

    keep("a", str(artifacts))

    assert (before, found(artifacts)) == ({"a": "text of a"}, {"a": "changed"})


def test_each_file_of_a_folder_is_copied(here: Path, artifacts: Path) -> None:
    write(here, "reports/a", "reports/deep/b", "other")

    assert keep("reports", str(artifacts)) == Kept("reports")
    assert keep("reports/", str(artifacts), "again") == Kept("again")
    assert list(found(artifacts)) == ["again/a", "again/deep/b", "reports/a", "reports/deep/b"]


def test_in_a_folder_only_what_belongs_to_it_is_copied(
    here: Path, artifacts: Path, tmp_path: Path
) -> None:
    write(here, "reports/a", "reports/deep/b")
    write(tmp_path, "secret", "secrets/key")
    (here / "reports" / "inside").symlink_to("deep/b")
    (here / "reports" / "outside").symlink_to(tmp_path / "secret")
    (here / "reports" / "outside-folder").symlink_to(tmp_path / "secrets")
    (here / "reports" / "gone").symlink_to("nobody")
    os.mkfifo(here / "reports" / "pipe")

    kept = keep("reports", str(artifacts))

    assert list(found(artifacts)) == ["reports/a", "reports/deep/b", "reports/inside"]
    assert sorted(kept.left_out) == ["gone", "outside", "outside-folder", "pipe"]


def test_a_link_that_is_named_outright_is_followed(
    here: Path, artifacts: Path, tmp_path: Path
) -> None:
    write(tmp_path, "elsewhere")
    (here / "link").symlink_to(tmp_path / "elsewhere")

    assert keep("link", str(artifacts)) == Kept("link")
    assert found(artifacts) == {"link": "text of elsewhere"}


def test_what_is_there_already_stays_where_it_is(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(artifacts, "deep/a", "b")
    monkeypatch.chdir(artifacts.parent)

    assert keep("artifacts/deep/a", str(artifacts)) == Kept("deep/a")
    assert keep("artifacts/deep", str(artifacts)) == Kept("deep")
    assert keep("artifacts", str(artifacts)) == Kept(".")
    assert list(found(artifacts)) == ["b", "deep/a"]


def test_the_folder_of_the_attempt_itself_can_be_kept(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(artifacts, "a")
    write(artifacts.parent, "notes")
    monkeypatch.chdir(artifacts.parent)

    keep(".", str(artifacts), "all")

    assert list(found(artifacts)) == ["a", "all/artifacts/a", "all/notes"]


def test_what_is_not_there_cannot_be_kept(here: Path, artifacts: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nobody"):
        keep("nobody", str(artifacts))

    assert not artifacts.exists()


def test_what_is_neither_file_nor_folder_cannot_be_kept(here: Path, artifacts: Path) -> None:
    os.mkfifo(here / "pipe")

    with pytest.raises(ValueError, match="pipe is neither a file nor a folder"):
        keep("pipe", str(artifacts))


def test_a_copy_that_breaks_off_leaves_nothing_that_looks_like_one(
    here: Path, artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, "a")

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", no_room)

    with pytest.raises(OSError, match="No space"):
        keep("a", str(artifacts))

    assert found(artifacts.parent) == {}

"""The machine's own key: made once, for its owner alone, outside of the data folder."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from longshore.adapters.system import ensure_key, key_file, read_key
from longshore.errors import ConfigurationError


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "keys" / "a"

    assert ensure_key(path, lambda: "lsk_one") == "lsk_one"
    assert ensure_key(path, lambda: "lsk_two") == "lsk_one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["a"]


def test_of_many_who_begin_at_once_all_get_the_same(tmp_path: Path) -> None:
    numbers, path = count(1), tmp_path / "a"
    with ThreadPoolExecutor(8) as pool:
        texts = list(
            pool.map(lambda _: ensure_key(path, lambda: f"lsk_{next(numbers)}"), range(32))
        )

    assert len(set(texts)) == 1
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_that_others_can_read_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "a"
    ensure_key(path, lambda: "lsk_one")
    path.chmod(0o640)

    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_key(path)


@pytest.mark.parametrize("content", ["", "\n", "schlüssel"])
def test_a_file_without_a_key_is_reported(content: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)

    with pytest.raises(ConfigurationError, match="contains no key"):
        ensure_key(path, lambda: "lsk_one")


def test_a_folder_that_cannot_be_written_is_reported_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match="keys_dir"):
        ensure_key(tmp_path / "file" / "keys" / "a", lambda: "lsk_one")


def test_each_data_folder_has_a_key_of_its_own_by_any_of_its_paths(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)
    keys = tmp_path / "keys"

    assert key_file(keys, data) != key_file(keys, other)
    assert key_file(keys, data) == key_file(keys, tmp_path / "link")
    assert key_file(keys, data) == key_file(keys, other / ".." / "data")


@pytest.mark.parametrize("keys", ["data", "data/keys", "link/keys"])
def test_the_key_is_not_stored_in_the_data_folder(keys: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")

    with pytest.raises(ConfigurationError, match="must not be in the data folder"):
        key_file(tmp_path / keys, tmp_path / "data")

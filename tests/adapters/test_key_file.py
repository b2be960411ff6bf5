"""The machine's own key: made once, for its owner alone."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from longshore.adapters.system import KEY_FILE_NAME, ensure_key, read_key
from longshore.errors import ConfigurationError


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    keys = ensure_key(tmp_path, lambda: "lsk_one")

    assert keys == "lsk_one"
    assert ensure_key(tmp_path, lambda: "lsk_two") == "lsk_one"
    assert stat.S_IMODE((tmp_path / KEY_FILE_NAME).stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [KEY_FILE_NAME]


def test_of_many_who_begin_at_once_all_get_the_same(tmp_path: Path) -> None:
    numbers = count(1)
    with ThreadPoolExecutor(8) as pool:
        texts = list(
            pool.map(lambda _: ensure_key(tmp_path, lambda: f"lsk_{next(numbers)}"), range(32))
        )

    assert len(set(texts)) == 1
    assert os.listdir(tmp_path) == [KEY_FILE_NAME]


def test_a_file_that_others_can_read_is_not_trusted(tmp_path: Path) -> None:
    ensure_key(tmp_path, lambda: "lsk_one")
    (tmp_path / KEY_FILE_NAME).chmod(0o640)

    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_key(tmp_path)


@pytest.mark.parametrize("content", ["", "\n", "schlüssel"])
def test_a_file_without_a_key_is_reported(content: str, tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE_NAME
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)

    with pytest.raises(ConfigurationError, match="contains no key"):
        ensure_key(tmp_path, lambda: "lsk_one")

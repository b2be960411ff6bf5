"""``import longshore`` brings nothing but names, and each name brings only what it needs."""

import subprocess
import sys

import pytest

import longshore

HEAVY = ("asyncio", "apsw", "pydantic", "rich", "typer", "yaml", "msgspec")


def loaded_after(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_the_package_alone_imports_nothing_of_itself() -> None:
    loaded = loaded_after("import longshore")

    assert [name for name in loaded if name.startswith("longshore.")] == []
    assert loaded.isdisjoint(HEAVY)


def test_defining_tasks_imports_nothing_heavy() -> None:
    program = "import longshore\n@longshore.task(timeout='5m')\ndef f(x: int) -> int: return x"

    assert loaded_after(program).isdisjoint(HEAVY)


def test_a_running_task_can_ask_for_its_context_without_anything_heavy() -> None:
    assert loaded_after("from longshore import Context, current, Retry, Fail").isdisjoint(HEAVY)


@pytest.mark.parametrize("name", longshore.__all__)
def test_every_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(longshore, name).__name__ == name
    assert name in dir(longshore)


def test_another_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'longshore' has no attribute 'sail'"):
        _ = longshore.sail

"""A function gets an import path that a worker can use, or an error that says what to do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import longshore
from longshore.errors import UsageError
from longshore.execution.runners import python
from longshore.interfaces.python.import_paths import import_path_of
from tests.interfaces import python_tasks
from tests.interfaces.python_tasks import fetch, renamed

SCRIPT = """
import json, longshore

@longshore.task
def greet(name: str) -> str:
    return f"hello {name}"

if __name__ == "__main__" or __name__.endswith("__main__"):
    try:
        print(json.dumps(greet.definition().options | {"name": greet.name}))
    except longshore.errors.UsageError as error:
        print(json.dumps(str(error)))
"""


def run_python(folder: Path, *arguments: str, stdin: str = "") -> dict[str, object] | str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def called(options: dict[str, object], folder: Path) -> object:
    """The result of the function in a new process that gets only the options."""
    settings = {**options, "kwargs": {"name": "you"}}
    program = "import json, sys; from longshore.execution.runners import python"
    return run_python(
        folder,
        "-c",
        f"{program}; print(json.dumps(python.run(json.loads({json.dumps(settings)!r}), {{}})))",
    )


def test_a_script_is_imported_by_its_stem_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "script.py").write_text(SCRIPT)

    options = run_python(tmp_path, "sub/script.py")

    assert options == {
        "function": "script:greet",
        "typed": True,
        "path": [str(tmp_path / "sub")],
        "name": "script-greet",
    }
    assert called(options, tmp_path) == "hello you"


def test_a_module_that_is_run_is_imported_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tasks.py").write_text(SCRIPT)

    options = run_python(tmp_path, "-m", "shop.tasks")

    assert options["function"] == "shop.tasks:greet"
    assert options["path"] == [str(tmp_path)]
    assert called(options, Path("/")) == "hello you"


@pytest.mark.parametrize("name", ["my-script.py", "this.py", "script"])
def test_a_script_that_cannot_be_imported_by_its_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(SCRIPT)

    message = run_python(tmp_path, name)

    assert f"because {name} cannot be imported by its name" in message
    assert "put the function into a module and import it from there" in message


@pytest.mark.parametrize(("arguments", "stdin"), [(("-c", SCRIPT), ""), (("-",), SCRIPT)])
def test_a_program_without_a_file_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], stdin: str
) -> None:
    message = run_python(tmp_path, *arguments, stdin=stdin)

    assert "'greet' cannot be submitted from the main program" in message
    assert "put the function into a module" in message


def test_the_main_module_of_a_package_is_refused(tmp_path: Path) -> None:
    # Importing it would run the program again.
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__main__.py").write_text(SCRIPT)

    assert "put the function into a module" in run_python(tmp_path, "-m", "shop")


def test_a_script_whose_name_means_another_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "taken.py").write_text("")
    (tmp_path / "taken.py").write_text(
        "import sys\nsys.path.insert(0, 'other')\nimport taken\n" + SCRIPT
    )

    assert "taken.py cannot be imported by its name" in run_python(tmp_path, "taken.py")


def test_a_module_that_is_installed_needs_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = sys.modules[pytest.__name__]
    monkeypatch.setattr(installed, "fetch", fetch, raising=False)

    import_path = import_path_of(fetch, pytest.__name__, "fetch")

    assert (import_path.path, import_path.source_dir) == ("pytest:fetch", None)


def test_a_package_itself_is_found_from_the_folder_above_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "__init__.py").write_text(SCRIPT)

    options = run_python(
        tmp_path, "-c", "import store, json; print(json.dumps(store.greet.definition().options))"
    )

    assert options == {"function": "store:greet", "typed": True, "path": [str(tmp_path)]}


def test_a_module_without_a_file_needs_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(python_tasks, "__file__")

    assert import_path_of(fetch, fetch.__module__, fetch.__qualname__).source_dir is None


def test_nothing_is_submitted_while_its_module_is_being_imported(tmp_path: Path) -> None:
    (tmp_path / "eager.py").write_text(SCRIPT.partition("if __name__")[0] + "greet.definition()")
    program = "import json\ntry:\n  import eager\nexcept Exception as e: print(json.dumps(str(e)))"

    assert "under `if __name__ == '__main__':`" in run_python(tmp_path, "-c", program)


def test_a_lambda_is_refused() -> None:
    with pytest.raises(UsageError, match="a lambda cannot be a task"):
        longshore.task(lambda: 1).definition()


def test_a_function_inside_another_is_refused() -> None:
    @longshore.task
    def inner() -> int:
        return 1

    with pytest.raises(UsageError, match="move it to the top level of its module"):
        inner.definition()


def test_a_task_that_is_not_importable_by_its_function_name_is_refused() -> None:
    with pytest.raises(UsageError, match="decorate it where it is defined"):
        renamed.definition()


def test_a_task_of_a_module_that_is_gone_is_refused() -> None:
    with pytest.raises(UsageError, match="that name is not the decorated function"):
        import_path_of(fetch, "nowhere", "fetch")


def test_the_import_path_in_a_definition_loads_the_task() -> None:
    assert python.load_function(fetch.definition().options["function"]) is fetch

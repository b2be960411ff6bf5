"""Definition files as they come: well written, half written, broken, huge, and not files at all."""

import os
from pathlib import Path

import pytest

from longshore.core.definitions.reader import read_definition
from longshore.interfaces.definition_files import (
    FILE_LIMIT,
    FILE_LIMIT_BYTES,
    FOLDER_LIMIT_BYTES,
    PROBLEM_LIMIT,
    FolderWatch,
    read_paths,
)
from longshore.services.definitions import FolderContents
from longshore.services.documents import definition_request

ROOT = Path(__file__).parents[2]
GOOD = "name: good\nrunner: command\n"
MB = 1024 * 1024


def write(folder: Path, **files: str | bytes) -> None:
    """Files of ``definitions/`` by the first part of their names; they are YAML."""
    for name, content in files.items():
        put(folder / "definitions" / f"{name}.yaml", content)


def put(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def names(reading: FolderContents) -> list[str]:
    return sorted(entry.definition.name for entry in reading.definitions)


def problem_texts(reading: FolderContents) -> list[str]:
    return [str(problem) for problem in reading.problems]


def test_definitions_are_read_from_every_file_and_in_every_form(tmp_path: Path) -> None:
    put(tmp_path / "longshore.yaml", "definitions: {a: {runner: command}, b: {runner: python}}")
    put(tmp_path / "definitions/one.yaml", "name: c\nrunner: command\ntimeout: 90s\n")
    put(tmp_path / "definitions/list.yml", "definitions: [{name: d, runner: command}]")
    put(
        tmp_path / "definitions/tabs.json", '{\t"$schema": "x",\n\t"name": "e", "runner": "python"}'
    )
    put(tmp_path / "definitions/UPPER.YAML", "\ufeffdefinitions:\n  f: {runner: python}\n")
    put(tmp_path / "definitions/notes.txt", "not: [ours")
    put(tmp_path / "definitions/.a.yaml.swp.yaml", "an: [editor's")

    documents, problems = FolderWatch(tmp_path).read()

    assert problems == ()
    assert {document.definition.name: document.file for document in documents} == {
        "a": "longshore.yaml",
        "b": "longshore.yaml",
        "c": "definitions/one.yaml",
        "d": "definitions/list.yml",
        "e": "definitions/tabs.json",
        "f": "definitions/UPPER.YAML",
    }
    for document in documents:
        assert read_definition(definition_request(document.definition)) == document.definition


@pytest.mark.parametrize("text", [None, "", "# later\n", "definitions:\n", "definitions: {}"])
def test_a_folder_may_contain_no_definitions(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        put(tmp_path / "longshore.yaml", text)

    assert FolderWatch(tmp_path).read() == FolderContents((), ())


def test_a_missing_folder_is_a_problem(tmp_path: Path) -> None:
    assert problem_texts(FolderWatch(tmp_path / "no").read()) == [
        f"{tmp_path}/no: the folder does not exist"
    ]


def test_aliases_and_merged_fields_are_resolved(tmp_path: Path) -> None:
    write(
        tmp_path,
        a="definitions:\n"
        "  a: &a {runner: command, timeout: 5s, retry: &r {maxAttempts: 7}}\n"
        "  b: {<<: *a, timeout: 9s}\n"
        "  c: {<<: [{queue: q}, *a, {queue: z}], retry: *r}\n",
    )

    reading = FolderWatch(tmp_path).read()

    assert problem_texts(reading) == []
    a, b, c = (entry.definition for entry in reading.definitions)
    timeouts = [definition.timeout and definition.timeout.seconds for definition in (a, b, c)]
    attempts = [definition.retry and definition.retry.max_attempts for definition in (a, b, c)]
    assert timeouts == [5, 9, 5]
    assert attempts == [7, 7, 7]
    assert c.queue == "q"


# Each with its lists inside the one before: a billion values in a few hundred bytes.
# Nine times as many values with each line: about 130,000.
_LAUGHS = "\n".join(f"  x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 6))
BOMB = f"name: bomb\nrunner: command\noptions:\n  x0: &x0 [ha]\n{_LAUGHS}\n"
_MERGES = "\n".join(f"  x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 9)}]}}" for n in range(1, 6))
MERGING_BOMB = f"name: bomb\nrunner: command\noptions:\n  x0: &x0 {{ha: ha}}\n{_MERGES}\n"
OPTIONS = "name: a\nrunner: command\noptions:\n  x: "

BROKEN: list[tuple[str | bytes, str]] = [
    ("name: a\nrunner: [command\n", "line 3: it is not YAML: while parsing a flow sequence, expec"),
    ("name: a\n\trunner: command", "line 2: it is not YAML: "),
    ("name: a\nrunner: command\nname: b\n", "line 3: 'name' occurs twice; keep one"),
    ("definitions:\n  a: {runner: python}\n  a: {runner: command}", "line 3: 'a' occurs twice"),
    ("definitions: [{name: a, runner: python}, {name: a, runner: python}]", "defined twice"),
    ("name: a\n---\nname: b\n", "line 2: it is not YAML: expected a single document in the stream"),
    (b"name: a\nrunner: \xff\xfe\n", "line 2: it is not UTF-8 text (a byte is 0xff); save it as"),
    ("name: a\x00\nrunner: command", "line 1: it is not YAML: special characters are not allowed"),
    ("", "expected one definition, or an object with 'definitions'"),
    ("- name: a\n  runner: command\n", "expected one definition, or an object with 'definitions'"),
    ("just words", "expected one definition, or an object with 'definitions'"),
    ("definitions: 7", "line 1: definitions: expected definitions by name, or a list"),
    ("definitions:\n  a:\n", "line 2: definitions.a: expected an object with 'runner'"),
    (
        "definitions:\n  a b: {runner: command}\n",
        "line 2: definitions.a b: expected a name of 1 to",
    ),
    ("definitions:\n  a: {name: a, runner: command}", "line 2: definitions.a.name: unknown here"),
    ("definitions: {}\ntasks: []\n", "line 2: tasks: unknown field; expected only definitions"),
    ("name: a\n", "line 1: runner: missing"),
    (
        "name: a\nrunner: steam\n",
        "line 2: runner: expected one of command, python, agent, not 'steam'",
    ),
    ("name: a\nrunner: command\n\ntimeot: 3s\n", "line 4: timeot: unknown field; expected one of"),
    (
        "definitions:\n- name: a\n  runner: command\n  retry:\n    maxAttempts: many\n",
        "line 5: definitions[0].retry: maxAttempts: expected a whole number from 1 on, not 'many'",
    ),
    ("name: a\nrunner: command\n3: x\n", "line 3: expected text before a colon, not '3'; put it"),
    ("name: a\nrunner: command\n[x]: x\n", "line 3: expected text before a colon, not a list or"),
    (f"{OPTIONS}!!binary aGk=\n", "line 4: it has a value of the kind 'binary', which is not JSON"),
    (f"{OPTIONS}!!timestamp 2030-01-31\n", "line 4: it has a value of the kind 'timestamp'"),
    (f"{OPTIONS}!!set {{a, b}}\n", "line 4: it has a value of the kind 'set'"),
    (f"{OPTIONS}!!python/object/apply:os.getpid []\n", "line 4: it has a value of the kind 'pyth"),
    (f"{OPTIONS}.nan\n", "options: expected a finite number, not nan"),
    (f'{OPTIONS}"\\ud800"\n', "options: expected valid Unicode"),
    (f"{OPTIONS}{'9' * 5000}\n", "it cannot be read: Exceeds the limit"),
    (f"{OPTIONS}{'[' * 100_000}", "it cannot be read: maximum recursion depth"),
    (f"{OPTIONS}{'[' * 110}{']' * 110}", "line 4: it is nested in more than 100 levels"),
    (f"{OPTIONS}&x [*x]\n", "line 4: it is nested in more than 100 levels; an alias (*) may"),
    (f"{OPTIONS}{{<<: 7}}\n", "line 4: expected fields, or a list of such, after '<<'"),
    (BOMB, "it has more than 50,000 values, including those that its aliases (*)"),
    (MERGING_BOMB, "it has more than 50,000 values, including those that its aliases (*)"),
]


@pytest.mark.parametrize(("content", "expected"), BROKEN, ids=range(len(BROKEN)))
def test_the_problem_of_a_broken_file_has_its_line_and_affects_only_that_file(
    tmp_path: Path, content: str | bytes, expected: str
) -> None:
    write(tmp_path, broken=content, good=GOOD)

    reading = FolderWatch(tmp_path).read()

    assert names(reading) == ["good"]
    (problem,) = problem_texts(reading)
    assert problem.startswith("definitions/broken.yaml")
    assert expected in problem


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"name": "a",\n "name": "b"}', "'name' occurs twice in one object; keep one"),
        ('{"name": "a"\n "runner"', "line 2: it is not JSON: Expecting ',' delimiter in column 2"),
        ('{"name": "a", "runner": 7}', "runner: expected one of command, python, agent, not 7"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"name": "a", "runner": "python", "options": {"x": NaN}}', "NaN is not JSON"),
        ('{"name": "a", "runner": "python", "x.[": 1}', "x.[: unknown field"),
    ],
    ids=range(6),
)
def test_a_broken_json_file_is_reported_with_its_problem(
    tmp_path: Path, content: str, expected: str
) -> None:
    put(tmp_path / "definitions/broken.json", content)

    (problem,) = problem_texts(FolderWatch(tmp_path).read())

    assert problem.startswith("definitions/broken.json")
    assert expected in problem


def test_longshore_yaml_has_definitions_and_nothing_else(tmp_path: Path) -> None:
    put(tmp_path / "longshore.yaml", f"{GOOD}definitions: {{a: {{runner: command}}}}\n")

    reading = FolderWatch(tmp_path).read()

    assert names(reading) == []
    assert problem_texts(reading) == [
        "longshore.yaml, line 1: name: unknown field; expected only definitions",
        "longshore.yaml, line 2: runner: unknown field; expected only definitions",
    ]


@pytest.mark.parametrize(
    ("fields", "more"),
    # The name and the runner are missing too.
    [(900, "882"), (998, "980"), (999, "at least 981"), (10_000, "at least 981")],
)
def test_a_file_with_many_problems_reports_some_and_their_number(
    tmp_path: Path, fields: int, more: str
) -> None:
    write(tmp_path, a="".join(f"x{number}: 1\n" for number in range(fields)))

    problems = problem_texts(FolderWatch(tmp_path).read())

    assert len(problems) == PROBLEM_LIMIT + 1
    assert problems[-1] == f"definitions/a.yaml: and {more} more problems"


def test_a_name_in_two_files_is_a_problem_of_both(tmp_path: Path) -> None:
    put(tmp_path / "longshore.yaml", "definitions: {feed: {runner: command}}")
    write(tmp_path, a="name: feed\nrunner: python\n", good=GOOD)

    reading = FolderWatch(tmp_path).read()

    assert names(reading) == ["good"]
    assert problem_texts(reading) == [
        "longshore.yaml: 'feed' is also defined in definitions/a.yaml, so none is stored; keep one",
        "definitions/a.yaml: 'feed' is also defined in longshore.yaml, so none is stored; keep one",
    ]


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, huge=GOOD, good=GOOD)
    os.truncate(tmp_path / "definitions/huge.yaml", 100 * MB)
    just = GOOD.replace("good", "just")
    put(tmp_path / "definitions/just.yaml", just + "#" * (FILE_LIMIT_BYTES - len(just)))

    reading = FolderWatch(tmp_path).read()

    assert names(reading) == ["good", "just"]
    assert problem_texts(reading) == [
        "definitions/huge.yaml: it has 104,857,600 bytes, more than 262,144; divide it, or move it"
        " out of the folder"
    ]


@pytest.mark.parametrize("count", [FILE_LIMIT + 1, 10_000])
def test_a_folder_of_too_many_files_is_not_read(tmp_path: Path, count: int) -> None:
    put(tmp_path / "longshore.yaml", "definitions: {own: {runner: command}}")
    (tmp_path / "definitions").mkdir()
    for number in range(count):
        (tmp_path / "definitions" / f"{number}.yaml").touch()

    reading = FolderWatch(tmp_path).read()

    assert names(reading) == ["own"]
    (problem,) = problem_texts(reading)
    assert problem.startswith("definitions/: it has more than 1,000 files")


def test_a_folder_of_too_many_bytes_is_not_read(tmp_path: Path) -> None:
    fit = FOLDER_LIMIT_BYTES // FILE_LIMIT_BYTES
    write(tmp_path, **{f"f{number}": b"#" * FILE_LIMIT_BYTES for number in range(fit)}, g=GOOD)

    (problem,) = problem_texts(FolderWatch(tmp_path).read())

    assert problem.startswith("definitions/: its files have 1,048,603 bytes, more than 1,048,576")


def test_an_entry_that_is_not_a_regular_file_is_a_problem_and_does_not_block(
    tmp_path: Path,
) -> None:
    write(tmp_path, good=GOOD)
    folder = tmp_path / "definitions"
    put(tmp_path / "elsewhere.yaml", "name: linked\nrunner: command\n")
    (folder / "circle.yaml").symlink_to("circle.yaml")
    (folder / "folder.yaml").mkdir()
    (folder / "linked.yaml").symlink_to("../elsewhere.yaml")
    (folder / "nothing.yaml").symlink_to("gone.yaml")
    (folder / "zeros.yaml").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.yaml")

    reading = FolderWatch(tmp_path).read()

    assert names(reading) == ["good", "linked"]
    assert [
        (problem.file.removeprefix("definitions/"), problem.message[:40])
        for problem in reading.problems
    ] == [
        ("circle.yaml", "its symbolic links form a cycle; replace"),
        ("folder.yaml", "it is not a regular file; rename it, or "),
        ("nothing.yaml", "it is a broken symbolic link; fix or rem"),
        ("pipe.yaml", "it is not a regular file; rename it, or "),
        ("zeros.yaml", "it is not a regular file; rename it, or "),
    ]


@pytest.mark.parametrize("target", ["definitions", "nowhere", "longshore.yaml"])
def test_a_definitions_entry_that_is_no_folder_is_a_problem(tmp_path: Path, target: str) -> None:
    put(tmp_path / "longshore.yaml", "definitions: {own: {runner: command}}")
    (tmp_path / "definitions").symlink_to(target)

    reading = FolderWatch(tmp_path).read()

    assert names(reading) == ["own"]
    assert [problem.file for problem in reading.problems] == ["definitions/"]


def test_files_and_folders_named_by_the_user_are_read_together(tmp_path: Path) -> None:
    put(tmp_path / "shop/longshore.yaml", "definitions: {own: {runner: command}}")
    write(tmp_path / "shop", good=GOOD)
    put(tmp_path / "more/a.yaml", "name: a\nrunner: command\n")
    put(tmp_path / "more/b.json", '{"name": "b", "runner": "command"}')
    put(tmp_path / "one.yml", "name: one\nrunner: command\n")
    put(tmp_path / "bad.yml", "name: own\nrunner: steam\n")
    paths = {name: tmp_path / name for name in ("shop", "more", "one.yml", "bad.yml", "no.yml")}

    assert names(read_paths([paths["shop"], paths["one.yml"]])) == ["good", "one", "own"]
    assert names(read_paths([paths["shop"] / "longshore.yaml", paths["more"]])) == ["a", "b", "own"]
    assert read_paths([paths["shop"] / "definitions"]).definitions[0].definition.name == "good"
    reading = read_paths([paths["bad.yml"], paths["no.yml"], paths["more"]])
    assert names(reading) == ["a", "b"]
    assert problem_texts(reading) == [
        f"{paths['bad.yml']}, line 2: runner: expected one of command, python, agent, not 'steam'",
        f"{paths['no.yml']}: the file does not exist",
    ]
    twice = read_paths([paths["one.yml"], paths["shop"], paths["shop"] / "definitions/good.yaml"])
    assert (names(twice), problem_texts(twice)) == (["good", "one", "own"], [])


def test_the_example_is_read_without_a_problem() -> None:
    reading = FolderWatch(ROOT / "examples" / "shop").read()

    assert problem_texts(reading) == []
    assert names(reading) == ["import-feed", "mail-customers", "mail-staff", "price-list"]

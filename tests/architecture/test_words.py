"""The vocabulary: words that occur nowhere, and words that have one meaning each.

`words.toml` has the lists. A forbidden word is matched as a whole word and as a part of a
snake-case or camel-case identifier, in text, code, file names, SQL, templates and documentation.
A word with one meaning is matched in the names that Python code binds. The test covers the folders
listed as clean; `python -m tests.architecture.test_words` counts what is left in the others.
"""

import ast
import functools
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).with_name("words.toml")
FOLDERS = (
    "benchmarks",
    "deploy",
    "docs",
    "examples",
    "infra",
    "src",
    "tests",
    "verification",
)
FILES = ("Makefile", "pyproject.toml")
SUFFIXES = {".json", ".md", ".py", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml", ".service"}
MAX_EXCEPTIONS = 15
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LINE_BREAK = re.compile(r"\s*\n\s*(?:#+ )?|\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMeaning:
    """A word with one meaning, and the names that may contain it."""

    word: str
    meaning: str
    match: str
    # Patterns of names, or `folder:pattern` for the names in a folder.
    allowed: tuple[str, ...]

    def refuses(self, name: str, path: str) -> bool:
        if self.match == "whole":
            matches = name.strip("_").lower() == self.word
        else:
            matches = self.word in parts_of(name)
        return matches and not any(self._allows(name, path, entry) for entry in self.allowed)

    def _allows(self, name: str, path: str, entry: str) -> bool:
        folder, _, pattern = entry.rpartition(":")
        return fnmatchcase(name, pattern) and (not folder or is_below(path, folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class WordException:
    """A forbidden word that may occur in some files, and why."""

    word: str
    paths: tuple[str, ...]
    reason: str

    def covers(self, word: str, path: str) -> bool:
        return word == self.word and any(is_below(path, folder) for folder in self.paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """A word that should not be there."""

    path: str
    line: int
    word: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The contents of `words.toml`."""

    clean: tuple[str, ...]
    words: frozenset[str]
    phrases: re.Pattern[str]
    one_meaning: tuple[OneMeaning, ...]
    exceptions: tuple[WordException, ...]


@functools.cache
def vocabulary() -> Vocabulary:
    document = tomllib.loads(LISTS.read_text(encoding="utf-8"))
    phrases = "|".join(re.escape(phrase) for phrase in document["forbidden"]["phrases"])
    return Vocabulary(
        clean=tuple(document["clean"]),
        words=frozenset(document["forbidden"]["words"]),
        phrases=re.compile(rf"\b(?:{phrases})\b", re.IGNORECASE),
        one_meaning=tuple(
            OneMeaning(
                word=word,
                meaning=entry["meaning"],
                match=entry["match"],
                allowed=tuple(entry["allowed"]),
            )
            for word, entry in document["one_meaning"].items()
        ),
        exceptions=tuple(
            WordException(word=entry["word"], paths=tuple(entry["paths"]), reason=entry["reason"])
            for entry in document.get("exceptions", ())
        ),
    )


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def parts_of(identifier: str) -> list[str]:
    """The words of a snake-case or camel-case identifier, in lower case."""
    return [part.lower() for part in _PART.findall(identifier)]


@functools.cache
def checked_files() -> tuple[str, ...]:
    """Paths of all files whose words are checked, relative to the root."""
    paths = [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*"))]
    texts = (
        path.relative_to(ROOT).as_posix()
        for path in sorted(paths)
        if path.suffix in SUFFIXES and path != LISTS and "__pycache__" not in path.parts
    )
    return (*FILES, *texts)


def occurrences_in(root: Path, path: str) -> Iterator[Occurrence]:
    """Every word in a file, or in its path, that should not be there."""
    text = (root / path).read_text(encoding="utf-8")
    words = vocabulary()
    exempt = {entry.word for entry in words.exceptions if entry.covers(entry.word, path)}
    forbidden = words.words - exempt
    for word in forbidden.intersection(parts_of(path)):
        yield Occurrence(path=path, line=0, word=word, detail="in the path")
    for number, line in enumerate(text.splitlines(), start=1):
        for identifier in _IDENTIFIER.findall(line):
            for word in forbidden.intersection(parts_of(identifier)):
                yield Occurrence(path=path, line=number, word=word, detail=line.strip()[:120])
    for match in words.phrases.finditer(_LINE_BREAK.sub(" ", text)):
        yield Occurrence(path=path, line=0, word=match[0].lower(), detail="a phrase")
    if path.endswith(".py"):
        for name, number in names_bound_in(ast.parse(text)):
            for rule in words.one_meaning:
                if rule.refuses(name, path):
                    yield Occurrence(path=path, line=number, word=name, detail=rule.meaning)


def names_bound_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name that a module binds: variables, parameters, functions, classes, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.ClassDef(name=name):
                yield name, node.lineno


@pytest.mark.parametrize("folder", vocabulary().clean)
def test_no_replaced_word_occurs_in_a_clean_folder(folder: str) -> None:
    paths = [path for path in checked_files() if is_below(path, folder)]

    occurrences = [str(item) for path in paths for item in occurrences_in(ROOT, path)]

    assert paths
    assert not occurrences, "\n".join(occurrences)


def test_there_are_few_exceptions_and_each_has_a_reason_and_a_use() -> None:
    exceptions = vocabulary().exceptions

    assert len(exceptions) <= MAX_EXCEPTIONS
    for entry in exceptions:
        texts = (
            (ROOT / path).read_text(encoding="utf-8")
            for path in checked_files()
            if entry.covers(entry.word, path)
        )
        assert entry.reason
        assert any(entry.word in parts_of(text) for text in texts), entry


def _plant(root: Path, path: str, text: str) -> list[str]:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")
    return [item.word for item in occurrences_in(root, path)]


# Any word of the list and a phrase, so that this file does not contain them itself.
WORD = min(vocabulary().words)
PHRASE = "for want " + "of"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/a.md", f"Ask the {WORD}."),
        ("docs/a.md", f"A sentence.\n{WORD.title()} it is."),
        ("src/a.py", f"open_{WORD}s_{WORD} = 1"),
        ("src/a.py", f"class Open{WORD.title()}:\n    pass"),
        ("src/a.py", f"OPEN_{WORD.upper()} = 1"),
        ("src/a.py", f"value = 'CREATE TABLE {WORD}_rows (id)'"),
        ("src/a.py", f"# the {WORD}"),
        ("infra/a.json", f'{{"{WORD}Table": 1}}'),
        (f"src/{WORD}.py", ""),
    ],
)
def test_a_planted_word_is_reported(tmp_path: Path, path: str, text: str) -> None:
    assert WORD in _plant(tmp_path, path, text)


def test_a_word_inside_a_longer_word_is_not_reported(tmp_path: Path) -> None:
    assert _plant(tmp_path, "docs/a.md", f"A {WORD}flower, a string, a foretold lighthouse.") == []


@pytest.mark.parametrize("break_", [" ", "\n", "\n    # "])
def test_a_planted_phrase_is_reported_across_lines(tmp_path: Path, break_: str) -> None:
    assert _plant(tmp_path, "docs/a.md", PHRASE.replace(" ", break_)) == [PHRASE]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("found = 1", ["found"]),
        ("self.known = 1", ["known"]),
        ("def f(order): ...", ["order"]),
        ("def f(_guard): ...", ["_guard"]),
        ("work_order_of = 1", ["work_order_of"]),
        ("for one in rows: ...", ["one"]),
        ("sort_order = not_found = to_wire = pytest.mark.slow", []),
    ],
)
def test_a_name_with_another_meaning_is_reported(
    tmp_path: Path, source: str, names: list[str]
) -> None:
    assert _plant(tmp_path, "src/a.py", source) == names


def main(paths: list[str]) -> None:
    """List the occurrences below the paths, or count those of every folder."""
    counts: Counter[str] = Counter()
    for path in checked_files():
        chosen = any(is_below(path, folder.rstrip("/")) for folder in paths)
        for item in occurrences_in(ROOT, path):
            counts["/".join(path.split("/")[:-1][:4]) or path] += 1
            if chosen:
                sys.stdout.write(f"{item}\n")
    if not paths:
        for folder, count in sorted(counts.items()):
            sys.stdout.write(f"{count:6} {folder}\n")
        sys.stdout.write(f"{counts.total():6} in all\n")


if __name__ == "__main__":
    main(sys.argv[1:])

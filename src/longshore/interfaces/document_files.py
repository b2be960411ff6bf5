"""Strict readers of JSON and YAML texts, for request bodies, job files and definition files.

The texts come from users, so everything that can be counted has a limit, including the values that
YAML aliases expand to. A name that occurs twice in one object is refused. YAML values are plain
JSON values: a date is a text.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from longshore.errors import UsageError

JOB_FILE_VALUE_LIMIT: Final = 2_000_000
VALUE_LIMIT: Final = 50_000
DEPTH_LIMIT: Final = 100

_MAX_DIGITS = 400
_LINE_DEPTH = 3  # definitions, a definition, its field: no problem is nested deeper
_YAML_TAG_PREFIX = "tag:yaml.org,2002:"


class UnreadableDocument(Exception):
    """A text cannot be read: why, and in which line."""

    def __init__(self, message: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(message)


def read_document(file: Path) -> Any:
    """Returns the content of a YAML or JSON file; ``-`` is stdin.

    Raises:
        UsageError: the file cannot be read or parsed; the message says where.
    """
    name = "stdin" if str(file) == "-" else str(file)
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        text = data.decode()
        if file.suffix == ".json" or text.lstrip()[:1] in ("{", "["):
            try:
                return parse_json(text)
            except UnreadableDocument as error:
                # YAML may begin like JSON.
                is_syntax = isinstance(error.__cause__, json.JSONDecodeError)
                if file.suffix == ".json" or not is_syntax:
                    raise
        return parse_yaml(text, value_limit=JOB_FILE_VALUE_LIMIT)[0]
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text") from error
    except UnreadableDocument as error:
        line = f", line {error.line}" if error.line else ""
        raise UsageError(f"{name}{line}: {error}") from error


def parse_json(text: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
        UnreadableDocument: it is not valid JSON, repeats a name, or cannot be stored.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_object,
            parse_constant=_refuse_constant,
            parse_int=_parse_integer,
        )
        if "\\u" in text:
            # A lone surrogate can be written in this way, and can be neither stored nor sent.
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        message = f"it is not JSON: {error.msg} in column {error.colno}"
        raise UnreadableDocument(message, error.lineno) from error
    except UnicodeEncodeError as error:
        raise UnreadableDocument("a text contains a lone surrogate") from error
    except RecursionError as error:
        raise UnreadableDocument("it is nested too deeply") from error
    return value


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name in fields if counts[name] > 1)
        raise UnreadableDocument(f"{repeated[:64]!r} occurs twice in one object; keep one")
    return fields


def _refuse_constant(name: str) -> Any:
    raise UnreadableDocument(f"{name} is not JSON")


def _parse_integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise UnreadableDocument(f"a number has more than {_MAX_DIGITS} digits")
    return int(digits)


class _PlainLoader(yaml.SafeLoader):
    """YAML without dates: in JSON, a time is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the library declares it so
        letter: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parse_yaml(text: str, *, value_limit: int = VALUE_LIMIT) -> tuple[Any, dict[str, int]]:
    """Returns the value of a YAML text, and the lines of its outer values by their paths.

    Raises:
        UnreadableDocument: it is not valid YAML, repeats a name, or has too many values.
    """
    try:
        # Written in Python: the loader in C crashes the process on a deeply nested file.
        loader = _PlainLoader(text)
        node = loader.get_single_node()
        values = _NodeConverter(loader, value_limit)
        return (None if node is None else values.convert(node, "", 0)), values.lines
    except yaml.MarkedYAMLError as error:
        location = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        column = f" in column {location.column + 1}" if location else ""
        line = location.line + 1 if location else None
        raise UnreadableDocument(f"it is not YAML: {problem}{column}", line) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UnreadableDocument(f"it is not YAML: {error.reason}", line) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableDocument(f"it cannot be read: {error}") from error


@dataclass(slots=True)
class _NodeConverter:
    """Converts the nodes of a YAML document to plain values, and counts the expanded aliases."""

    loader: _PlainLoader
    value_limit: int
    lines: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def convert(self, node: yaml.Node, path: str, depth: int) -> Any:
        line = node.start_mark.line + 1
        self.count += 1
        if self.count > self.value_limit:
            message = (
                f"it has more than {self.value_limit:,} values, including those that its aliases"
                " (*) expand to; divide it or shorten it"
            )
            raise UnreadableDocument(message, line)
        if depth > DEPTH_LIMIT:
            message = (
                f"it is nested in more than {DEPTH_LIMIT} levels; an alias (*) may contain itself"
            )
            raise UnreadableDocument(message, line)
        if depth <= _LINE_DEPTH:
            self.lines.setdefault(path, line)
        match node:
            case yaml.MappingNode(tag=tag) if tag == f"{_YAML_TAG_PREFIX}map":
                return self._convert_mapping(node, path, depth)
            case yaml.SequenceNode(tag=tag) if tag == f"{_YAML_TAG_PREFIX}seq":
                return [
                    self.convert(item, f"{path}[{index}]", depth + 1)
                    for index, item in enumerate(node.value)
                ]
            case yaml.ScalarNode():
                value = self.loader.construct_object(node)
                if value is None or isinstance(value, str | int | float):
                    return value
        kind = node.tag.removeprefix(_YAML_TAG_PREFIX)[:64]
        raise UnreadableDocument(f"it has a value of the kind {kind!r}, which is not JSON", line)

    def _convert_mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == f"{_YAML_TAG_PREFIX}merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            plain = isinstance(key, yaml.ScalarNode)
            name = self.loader.construct_object(key) if plain else None
            line = key.start_mark.line + 1
            if not isinstance(name, str):
                shown = f"{key.value[:64]!r}; put it in quotes" if plain else "a list or an object"
                raise UnreadableDocument(f"expected text before a colon, not {shown}", line)
            if name in fields:
                raise UnreadableDocument(f"{name[:64]!r} occurs twice; keep one", line)
            fields[name] = self.convert(
                value, f"{path}.{name[:64]}" if path else name[:64], depth + 1
            )
        for source in merged:
            inherited = self.convert(source, path, depth + 1)
            if not isinstance(inherited, dict):
                message = "expected fields, or a list of such, after '<<'"
                raise UnreadableDocument(message, source.start_mark.line + 1)
            fields = {**inherited, **fields}
        return fields

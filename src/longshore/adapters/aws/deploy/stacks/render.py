"""Reads the files in ``templates/`` and fills in their placeholders.

``<name>`` in a file is a value of the stage file, such as ``<api.burst>``, or a value that the
caller passes. Everything else is CloudFormation.
"""

from __future__ import annotations

import functools
import re
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import yaml

from longshore.adapters.aws.deploy.stacks.stage_config import StageConfig

Json = dict[str, Any]

_FOLDER: Final = Path(__file__).with_name("templates")
_PLACEHOLDER: Final = re.compile(r"<([a-z_]+(?:\.[a-z_]+)*)>")


class _Loader(yaml.SafeLoader):
    """Reads ``!Ref``, ``!GetAtt`` and so on as JSON templates spell them."""


def _intrinsic(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> Json:
    value: Any
    if isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_scalar(node)  # type: ignore[arg-type]
    if tag == "GetAtt":
        value = value.rsplit(".", 1)
    return {tag if tag == "Ref" else f"Fn::{tag}": value}


_Loader.add_multi_constructor("!", _intrinsic)


@functools.cache
def read(file: str) -> Json:
    text = (_FOLDER / f"{file}.yaml").read_text(encoding="utf-8")
    document: Json = yaml.load(text, _Loader)  # noqa: S506 - a safe loader, and our own files
    return document


def _fill(value: Any, scope: object) -> Any:
    """A part of a file with values instead of placeholders.

    A placeholder alone becomes the value itself: a number, a list, a mapping; a list inside a list
    is inserted there. A property whose value is None is left out.
    """
    match value:
        case str():
            if alone := _PLACEHOLDER.fullmatch(value):
                return attrgetter(alone[1])(scope)
            return _PLACEHOLDER.sub(lambda match: str(attrgetter(match[1])(scope)), value)
        case dict():
            filled = {_fill(key, scope): _fill(item, scope) for key, item in value.items()}
            return {key: item for key, item in filled.items() if item is not None}
        case list():
            parts = [(item, _fill(item, scope)) for item in value]
            return [
                entry
                for item, part in parts
                for entry in (part if isinstance(item, str) and isinstance(part, list) else [part])
            ]
    return value


def fill(part: Any, config: StageConfig, **values: Any) -> Any:
    """A part of a file with the values of the stage file, and others."""
    return _fill(part, SimpleNamespace(**vars(config), **values))


def fill_file(file: str, config: StageConfig, **values: Any) -> Json:
    """A file with the values of the stage file, and others."""
    filled: Json = fill(read(file), config, **values)
    return filled

"""What the input of a task may change of the options of its definition.

Whoever may submit writes the input, whoever may define writes the options. What a definition does
not name in ``overridable`` stays as it is, except for declared input: the arguments of a function
that the definition does not set. The submit checks it, so that all problems are listed, and the
child, so that no row can get around it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from longshore.core.document_reader import expected

OPTION_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "command": ("argv", "env", "cwd"),
    "python": ("function", "args", "kwargs", "path", "env"),
}
"""The options of a runner that an input can contain. The input of an agent contains none."""
_WITH_MEMBERS = ("env", "kwargs")
_ARGUMENTS = ("args", "kwargs")


def merge_input(
    runner: str,
    options: Mapping[str, Any],
    overridable: Collection[str],
    task_input: Mapping[str, Any],
) -> tuple[dict[str, Any], list[str]]:
    """Returns the options with those of an input, and the names of options that it must not set.

    Variables and keyword arguments are combined one by one.
    """
    merged, refused = dict(options), []
    for name in OPTION_NAMES.get(runner, ()):
        if name not in task_input:
            continue
        value, own = task_input[name], options.get(name)
        is_free = name in overridable or (name in _ARGUMENTS and name not in options)
        merged[name] = value
        if name in _WITH_MEMBERS and isinstance(value, dict) and isinstance(own or {}, dict):
            merged[name] = {**(own or {}), **value}
            if not is_free:
                refused += [
                    f"{name}.{member}"
                    for member in value
                    if f"{name}.{member}" not in overridable
                    and (name not in _ARGUMENTS or member in (own or {}))
                ]
        elif not is_free:
            refused.append(name)
    return merged, refused


def override_problem(definition: str, name: str) -> str:
    """Returns why an input must not set an option, and what to do."""
    return (
        f"the definition {definition!r} does not let the input set it: leave it out, or add"
        f" {name!r} to the definition's `overridable`"
    )


def read_overridable(runner: str, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the options that a definition lets an input set.

    Raises:
        ValueError: the runner has no such option.
    """
    options = OPTION_NAMES.get(runner, ())
    if names and not options:
        raise ValueError("the input of an agent sets no options")
    for name in names:
        option, _, member = name.partition(".")
        if option not in options or (name != option and not (member and option in _WITH_MEMBERS)):
            members = [f"{option}.NAME" for option in options if option in _WITH_MEMBERS]
            raise expected(f"some of {', '.join((*options, *members))}", name)
    return tuple(names)

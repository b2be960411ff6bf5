"""What can be set of the API: where it listens, by which names, how much it takes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field

from longshore.settings.fields import KIB, MIB, Section, bounded, split_list

_NAME = re.compile(r"\*|[A-Za-z0-9.-]{1,253}|[0-9A-Fa-f:]{2,45}")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _check_host(name: str) -> str:
    if not _NAME.fullmatch(name):
        message = f"{name!r} is not the name or the address of a host"
        raise ValueError(message)
    return name.lower()


Host = Annotated[str, AfterValidator(_check_host)]


class ApiSettings(Section):
    """Where the API listens, and what it takes from a request."""

    host: Host = Field(default="127.0.0.1", description="Address that the API listens at.")
    port: int = bounded("Port that the API listens at; 0: any that is free.", 8421, 0, 65_535)
    hosts: Annotated[tuple[Host, ...], BeforeValidator(split_list)] = Field(
        default=_LOOPBACK,
        description="Names by which requests may call the server; * allows any.",
        min_length=1,
    )
    body_bytes: ByteSize = bounded("Bytes a request's body may have.", 16 * MIB, KIB, 1024 * MIB)
    requests_per_second: int = bounded(
        "How many requests a second one key may make.", 100, 1, 1_000_000
    )
    burst: int = bounded("How many requests one key may make at once.", 500, 1, 1_000_000)

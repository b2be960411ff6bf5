"""save-event: the bus → the history of everything."""

from __future__ import annotations

from typing import Any

from longshore.interfaces.lambdas.batches import BatchResponse, process_each
from longshore.interfaces.lambdas.container import Container, LambdaContext
from longshore.wiring.lambdas import open_archive

container = Container(open_archive)


def handler(event: Any, context: LambdaContext) -> BatchResponse:
    """Keep each event, with the moment at which it came here."""
    return process_each(container, event, context, lambda archive, record: archive.save(record))

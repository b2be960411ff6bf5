"""save-event: the bus → the history of everything."""

from __future__ import annotations

from typing import Any

from longshore.interfaces.lambdas.batches import Answer, each
from longshore.interfaces.lambdas.container import Container, Context
from longshore.wiring.functions import archiving

container = Container(archiving)


def handler(event: Any, context: Context) -> Answer:
    """Keep each event, with the moment at which it came here."""
    return each(container, event, context, lambda archive, record: archive.save(record))

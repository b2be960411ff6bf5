"""Bugs that show only on AWS: late events, partly failed batches, retries of the client library."""

from functools import partial

from tests.planting import Argument, Replace, Value
from tests.simulation.task_bugs import Bug

_bug = partial(Bug, profile="aws")

AWS_BUGS = (
    _bug(
        "the relay ignores which events the bus has refused",
        at="services.event_delivery:Relay.publish",
        do=Replace("|= _publish_events()", "await self._publish_events(events)"),
    ),
    _bug(
        "the relay retries from the last failed record, not the first",
        at="services.event_delivery:Relay.publish",
        do=Argument("map()", 1, "$0[::-1]"),
    ),
    _bug(
        "the relay counts events as published when the bus did not answer",
        at="services.event_delivery:Relay._publish_events",
        do=Value("return events", "()"),
    ),
    _bug(
        "the relay publishes only the first event of a change",
        at="services.event_delivery:Relay.publish",
        do=Value("+=", "$0[:1]"),
    ),
    _bug(
        "the dispatcher's function reports no failed message",
        at="services.dispatcher:Dispatcher.handle",
        do=Value("return split_task_id()", "[]"),
    ),
    _bug(
        "the function that saves events reports success after a failure",
        at="verification.simulation.functions:LambdaFunctions._save",
        do=Replace("append()", "continue"),
    ),
    _bug(
        "a conflict with a change that the client library retried counts as foreign",
        at="services.transitions:Transitions.commit.commit",
        do=Replace("|= maybe_committed", "$1 = $2"),
    ),
)

"""Bugs that only AWS brings out: events come later than rows, batches fail in part, and the client
library asks again by itself."""

from functools import partial

from tests.planting import Argument, Condition, Replace, Value
from tests.simulation.task_bugs import Bug

_bug = partial(Bug, profile="aws")

AWS_BUGS = (
    _bug(
        "the relay does not look which events the bus has refused",
        at="services.event_delivery:Relay.publish",
        do=Replace("|= _publish_events()", "await self._publish_events(events)"),
    ),
    _bug(
        "the relay has the last failed record come again and not the first",
        at="services.event_delivery:Relay.publish",
        do=Argument("map()", 1, "$0[::-1]"),
    ),
    _bug(
        "the relay takes events for told when the bus did not answer",
        at="services.event_delivery:Relay._publish_events",
        do=Value("return events", "()"),
    ),
    _bug(
        "the relay tells the first event of a change alone",
        at="services.event_delivery:Relay.publish",
        do=Value("+=", "$0[:1]"),
    ),
    _bug(
        "the dispatcher's function has nothing come again",
        at="services.dispatcher:Dispatcher.handle",
        do=Value("return split_task_id()", "[]"),
    ),
    _bug(
        "the function that saves events answers that all is well when it is not",
        at="verification.simulation.functions:LambdaFunctions._save",
        do=Replace("append()", "continue"),
    ),
    _bug(
        "a conflict with a change that the library made twice is somebody else's",
        at="services.transitions:Transitions.commit.commit",
        do=Replace("|= maybe_committed", "$1 = $2"),
    ),
    _bug(
        "a resume that is not in the history yet was never made",
        at="services.operator_commands:Resumer._event_at",
        do=Condition("get_job()", False),
    ),
)

"""Bugs that only AWS brings out: events come later than rows, batches fail in part, and the client
library asks again by itself."""

from functools import partial

from tests.planting import Argument, Condition, Replace, Value
from tests.simulation.bugs_of_tasks import Bug

_bug = partial(Bug, weather="aws")

BUGS_OF_AWS = (
    _bug(
        "the relay does not look which events the bus has refused",
        at="services.relay:Relay.tell",
        do=Replace("|= _publish()", "await self._publish(events)"),
    ),
    _bug(
        "the relay has the last failed record come again and not the first",
        at="services.relay:Relay.tell",
        do=Argument("map()", 1, "$0[::-1]"),
    ),
    _bug(
        "the relay takes events for told when the bus did not answer",
        at="services.relay:Relay._publish",
        do=Value("return events", "()"),
    ),
    _bug(
        "the relay tells the first event of a change alone",
        at="services.relay:Relay.tell",
        do=Value("+=", "$0[:1]"),
    ),
    _bug(
        "the dispatcher's function has nothing come again",
        at="services.dispatcher:Dispatcher.hear",
        do=Value("return split_task_id()", "[]"),
    ),
    _bug(
        "the function that saves events answers that all is well when it is not",
        at="testing.simulation.functions:Functions._save",
        do=Replace("append()", "continue"),
    ),
    _bug(
        "a conflict with a change that the library made twice is somebody else's",
        at="services.transitions:Transitions.commit.commit",
        do=Replace("|= perhaps_ours", "$1 = $2"),
    ),
    _bug(
        "a resume that is not in the history yet was never made",
        at="services.resuming:Resuming._told_at",
        do=Condition("_job()", False),
    ),
)

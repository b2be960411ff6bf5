"""Bugs of what people want and hear: cancel, review, pause, and the health check's alerts."""

from tests.planting import After, Argument, Condition, Drop, Replace, Value
from tests.simulation.bugs_of_tasks import Bug

BUGS_OF_WISHES = (
    Bug(
        "a cancelled task is tried again when its attempt fails",
        at="core.task.attempts:attempt_failed",
        do=Drop("if cancel"),
    ),
    Bug(
        "a cancelled job goes on where it was not yet begun",
        at="services.cancelling:Cancelling._open_tasks",
        do=(Argument("up_to()", 0, "$0 - 1"), Value("= up_to()", "$1")),
    ),
    Bug(
        "a cancellation passes over a resume that is under way",
        at="services.cancelling:Cancelling._finish_all",
        do=Condition("get()", "$0 and intent.kind is not IntentKind.RESUME"),
    ),
    Bug(
        "an approval is of whatever is in review",
        at="core.task.wishes:_not_reviewable",
        do=Condition("attempt", False),
    ),
    Bug(
        "whoever approves does not wait for what follows",
        at="services.reviewing:Reviewing.approve",
        do=Drop("settle()"),
    ),
    Bug(
        "a paused queue is served",
        at="services.worker.worker:Worker._served",
        do=Replace("_paused", "frozenset()", nth=2),
    ),
    Bug(
        "a pause is looked for only now and then",
        at="services.worker.worker:Worker._listen_for_pauses",
        do=After("set() _slot_freed", "await self._backend.clock.sleep(20 * _AFTER_TROUBLE)"),
    ),
    Bug(
        "a problem is told at every check",
        at="core.alerting:_is_news",
        do=Value("return over", "True"),
    ),
    Bug(
        "dead letters are told at every check",
        at="core.piles:_news_of",
        do=Value("return cooled()", "$1"),
    ),
    Bug(
        "an alert that was not taken counts as told",
        at="services.alerting:Alerting._tell_one",
        do=Condition("_sent()", "$0 and not $1"),
    ),
    Bug(
        "what was told is not kept",
        at="services.alerting:ToldBook._write",
        do=Condition("", False),
    ),
    Bug(
        "nobody is told that a problem is over",
        at="core.alerting:_notice_of_tasks",
        do=Condition("over", "$0 and last.attempt > 1"),
    ),
    Bug(
        "a channel that hangs holds up the check",
        at="services.alerting:Alerting.tell",
        do=Argument("sleep()", 0, "1000 * $0"),
    ),
)

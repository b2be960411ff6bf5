"""Bugs of what people want and hear: cancel, review, pause, and the health check's alerts."""

from tests.planting import After, Argument, Before, Condition, Drop, Replace, Value
from tests.simulation.task_bugs import Bug

OPERATOR_BUGS = (
    Bug(
        "a cancelled task is tried again when its attempt fails",
        at="core.tasks.attempts:attempt_failed",
        do=Drop("if cancel"),
    ),
    Bug(
        "a cancelled job goes on where it was not yet begun",
        at="services.operator_commands:Canceller._open_tasks",
        do=(Argument("below()", 0, "$0 - 1"), Value("= below()", "$1")),
    ),
    Bug(
        "a cancellation passes over a resume that is under way",
        at="services.operator_commands:Canceller.cancel_job",
        do=Before("finish_intent()", "if intent.kind == 'resume':\n    continue"),
    ),
    Bug(
        "an approval is of whatever is in review",
        at="core.tasks.operator:_not_reviewable",
        do=Condition("attempt", False),
    ),
    Bug(
        "whoever approves does not wait for what follows",
        at="services.operator_commands:ReviewDecisions.approve",
        do=Drop("settle()"),
    ),
    Bug(
        "a paused queue is served",
        at="services.worker.worker:Worker._active_queues",
        do=Replace("_paused", "frozenset()", nth=2),
    ),
    Bug(
        "a pause is looked for only now and then",
        at="services.worker.worker:Worker._watch_pauses",
        do=After("set() _slot_freed", "await self._backend.clock.sleep(20 * _RETRY_PAUSE)"),
    ),
    Bug(
        "a problem is told at every check",
        at="core.alerts:_should_report",
        do=Value("return resolved", "True"),
    ),
    Bug(
        "dead letters are told at every check",
        at="core.alerts:_change_of",
        do=Value("return cool_down_passed()", "$1"),
    ),
    Bug(
        "an alert that was not taken counts as told",
        at="services.health:AlertSender._notify_channel",
        do=Condition("_send()", "$0 and not $1"),
    ),
    Bug(
        "what was told is not kept",
        at="services.health:AlertRecords._write",
        do=Condition("", False),
    ),
    Bug(
        "nobody is told that a problem is over",
        at="core.alerts:_notice_of_tasks",
        do=Condition("resolved", "$0 and last.attempt > 1"),
    ),
    Bug(
        "a channel that hangs holds up the check",
        at="services.health:AlertSender.send_findings",
        do=Argument("sleep()", 0, "1000 * $0"),
    ),
)

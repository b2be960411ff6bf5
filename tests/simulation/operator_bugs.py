"""Bugs of operator commands and alerts: cancel, review, pause, health check."""

from tests.planting import After, Argument, Before, Condition, Drop, Replace, Value
from tests.simulation.task_bugs import Bug

OPERATOR_BUGS = (
    Bug(
        "a cancelled task is retried when its attempt fails",
        at="core.tasks.task:apply",
        do=Condition("AttemptCommand cancel", "$0 and not isinstance(command, c.AttemptFailed)"),
    ),
    Bug(
        "a cancelled job still runs tasks that had not started",
        at="services.operator_commands:OperatorCommands._open_tasks",
        do=(Argument("below()", 0, "$0 - 1"), Value("= below()", "$1")),
    ),
    Bug(
        "a cancellation ignores a resume that is in progress",
        at="services.operator_commands:OperatorCommands.cancel_job",
        do=Before("finish_intent()", "if intent.kind == 'resume':\n    continue"),
    ),
    Bug(
        "an approval ignores which attempt was reviewed",
        at="core.tasks.task:_not_reviewable",
        do=Condition("attempt", False),
    ),
    Bug(
        "an approval answers before its dependents are dispatched",
        at="services.operator_commands:OperatorCommands.approve",
        do=Drop("settle()"),
    ),
    Bug(
        "a paused queue is served",
        at="services.message_source:MessageTaskSource._active_queues",
        do=Replace("tuple()", "worker.queues"),
    ),
    Bug(
        "a worker checks for pauses too rarely",
        at="services.message_source:MessageTaskSource._watch_pauses",
        do=After("set()", "await self.backend.clock.sleep(20 * _RETRY_PAUSE)"),
    ),
    Bug(
        "a health problem is reported at every check",
        at="core.alerts:_should_report",
        do=Value("return resolved", "True"),
    ),
    Bug(
        "dead letters are reported at every check",
        at="core.alerts:_change_of",
        do=Value("return cool_down_passed()", "$1"),
    ),
    Bug(
        "rejected messages of one queue only are reported",
        at="services.health:HealthCheck._read_rejected",
        do=Replace("queues", "$0[:1]"),
    ),
    Bug(
        "a rejected message is forgotten while a channel is down",
        at="services.health:HealthCheck._read_rejected",
        do=Replace("REJECTED_MESSAGE_LIFETIME", "type($0)(seconds=8)"),
    ),
    Bug(
        "a refused alert counts as delivered",
        at="services.health:AlertSender._notify_channel",
        do=Condition("_send()", "$0 and not $1"),
    ),
    Bug(
        "delivered alerts are not stored",
        at="services.health:AlertRecords._write",
        do=Condition("", False),
    ),
    Bug(
        "a resolved problem is not reported",
        at="core.alerts:_notice_of_tasks",
        do=Condition("resolved", "$0 and last.attempt > 1"),
    ),
    Bug(
        "a channel that hangs blocks the health check",
        at="services.health:AlertSender.send_findings",
        do=Argument("sleep()", 0, "1000 * $0"),
    ),
)

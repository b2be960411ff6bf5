"""Health checks with real channels: a bad day of theirs loses nothing and repeats nothing."""

from pathlib import Path

import pytest

from longshore.adapters.alerts.slack import slack_bot
from longshore.adapters.alerts.webhook import webhook_alerts
from tests.adapters.alerts.conftest import HastyClock
from tests.adapters.alerts.server import Answer, Server, slack_error, slack_ok
from tests.unit.services.alert_recording import (
    MINUTE,
    claim_with_long_lease,
    health_by_key,
    health_check_events,
    make_health_check,
)
from tests.unit.services.harness import (
    BACKENDS,
    TENANT,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.parked_alerts import park_task, unpark

BAD_DAYS = {
    "token withdrawn": slack_error("invalid_auth"),
    "channel deleted": slack_error("channel_not_found"),
    "busy": slack_error("ratelimited", 429, Retry_After="30"),
    "broken": Answer(status=500),
    "hung up": Answer(hangs_up=True),
}


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("day", BAD_DAYS)
@scenario
async def test_failures_of_slack_cost_no_check_and_no_alert_is_sent_twice(
    kind: str, day: str, tmp_path: Path, server: Server
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        bot = slack_bot(
            token="xoxb-1", channel="C1", clock=HastyClock(), base_url=f"{server.url}/api/"
        )
        await stage.submit(make_task())
        await claim_with_long_lease(stage, "a")
        stage.clock.advance(11 * MINUTE)
        with Server().running() as other:
            hook = webhook_alerts(f"{other.url}/hook", ["s" * 32], HastyClock())
            check = make_health_check(stage, bot, hook)

            server.answers_with(BAD_DAYS[day])
            for _ in range(3):
                report = await check.check_tenant(TENANT)
                stage.clock.advance(5 * MINUTE)
            server.answers_with(slack_ok())
            server.received.clear()
            for _ in range(3):
                await check.check_tenant(TENANT)
                stage.clock.advance(5 * MINUTE)
            await stage.end_lease("a")
            for _ in range(2):
                await check.check_tenant(TENANT)

        assert health_by_key(report) == {"a": "critical"}
        assert len(await health_check_events(stage)) == 8
        assert [item.json["text"] for item in server.received] == [
            ":red_circle: Task Health: 1 stuck tasks, 0 overtime tasks",
            ":white_check_mark: Task Health: 1 tasks recovered",
        ]
        assert [len(item.json["recovered"]) for item in other.received] == [0, 1]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("day", BAD_DAYS)
@scenario
async def test_failures_of_slack_hide_no_dead_letter_and_repeat_none(
    kind: str, day: str, tmp_path: Path, server: Server
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        bot = slack_bot(
            token="xoxb-1", channel="C1", clock=HastyClock(), base_url=f"{server.url}/api/"
        )
        await stage.submit(make_task())
        await stage.fail(task_id("a"))
        with Server().running() as other:
            hook = webhook_alerts(f"{other.url}/hook", ["s" * 32], HastyClock())
            check = make_health_check(stage, bot, hook)

            server.answers_with(BAD_DAYS[day])
            for _ in range(3):
                await check.check_all()
                stage.clock.advance(5 * MINUTE)
            server.answers_with(slack_ok())
            server.received.clear()
            for _ in range(3):
                await check.check_all()
                stage.clock.advance(5 * MINUTE)
            await stage.dead_letters.replay(TENANT, [task_id("a")], by="ann")
            for _ in range(2):
                await check.check_all()

        assert [item.json["text"] for item in server.received] == [
            ":red_circle: Dead Letters: 1",
            ":white_check_mark: Dead Letters: none left",
        ]
        assert [item.json["deadLetters"]["change"] for item in other.received] == [
            "first",
            "none_left",
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("day", BAD_DAYS)
@scenario
async def test_failures_of_slack_hide_no_parked_task_and_repeat_none(
    kind: str, day: str, tmp_path: Path, server: Server
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        bot = slack_bot(
            token="xoxb-1", channel="C1", clock=HastyClock(), base_url=f"{server.url}/api/"
        )
        parked = await park_task(stage)
        with Server().running() as other:
            hook = webhook_alerts(f"{other.url}/hook", ["s" * 32], HastyClock())
            check = make_health_check(stage, bot, hook)

            server.answers_with(BAD_DAYS[day])
            for _ in range(3):
                await check.check_all()
                stage.clock.advance(5 * MINUTE)
            server.answers_with(slack_ok())
            server.received.clear()
            for _ in range(3):
                await check.check_all()
                stage.clock.advance(5 * MINUTE)
            await unpark(stage, parked)
            for _ in range(2):
                await check.check_all()

        assert [item.json["text"] for item in server.received] == [
            ":warning: Parked Tasks: 1",
            ":white_check_mark: Parked Tasks: none left",
        ]
        assert [item.json["parkedTasks"]["change"] for item in other.received] == [
            "first",
            "none_left",
        ]

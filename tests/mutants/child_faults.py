"""Faults in how attempts are kept: the keeper, its guards, the leaders below them.

They take effect in processes that start with a clean environment, so only a copy of the sources
that is the installed one shows them (see ``trial``).
"""

from functools import partial

from tests.mutants.fault import Fault, Part

_NASTY = "adapters/process/test_nasty_children.py"
_STOPPING = "adapters/process/test_runner_stopping.py"
_RUNNER = "adapters/process/test_runner.py"
_REPORTS = "adapters/process/test_runner_reports.py"
_ORDERS = "adapters/process/test_orders.py"
_GUARDS = "adapters/process/test_guards.py"
_OUTSIDERS = "adapters/process/test_outsiders.py"
_PRESENCE = "adapters/process/test_presence_of_attempts.py"
_SECRETS = "acceptance/test_secrets.py"

_fault = partial(Fault, part=Part.CHILDREN)
_in_keeper = partial(_fault, file="runners/keeper/keeper.py")
_in_guard = partial(_fault, file="runners/keeper/guard.py")
_in_leader = partial(_fault, file="runners/keeper/leader.py")
_in_pool = partial(_fault, file="runners/keeper/pool.py")
_in_work = partial(_fault, file="runners/work.py")
_in_runner = partial(_fault, file="adapters/process/runner.py")
_in_attempt = partial(_fault, file="adapters/process/attempt.py")
_in_said = partial(_fault, file="adapters/process/said.py")

CHILD_FAULTS = (
    _in_guard(
        name="a guard adopts no orphans",
        old="        adopt_orphans()\n",
        new="",
        caught_by=f"{_NASTY}::test_nobody_whom_it_leaves_behind_outlives_it",
    ),
    _in_guard(
        name="whoever is left behind lives on",
        old="for process_id in descendants(os.getpid()):",
        new="for process_id in ():",
        caught_by=f"{_NASTY}::test_nobody_whom_it_leaves_behind_outlives_it",
    ),
    _in_guard(
        name="a guard is deaf to the end of the keeper",
        old="        if not word:\n            return True\n",
        new="        if not word:\n            return None\n",
        caught_by=f"{_NASTY}::test_when_the_keeper_is_killed_nothing_of_its_attempts_is_left",
    ),
    _in_guard(
        name="a guard lets go of the worker's lock",
        old=", *held})",
        new="})",
        caught_by=f"{_PRESENCE}::test_a_worker_is_not_gone_while_anything_of_its_attempt_lives",
    ),
    _in_guard(
        name="nobody looks at the memory of all together",
        old="return used > self._memory_bytes",
        new="return False",
        caught_by=f"{_NASTY}::test_many_that_together_use_more_than_the_limit_are_out_of_memory",
    ),
    _in_guard(
        name="a request to end kills",
        old="        if kill is False:\n            self._signal_group(signal.SIGTERM)\n"
        "        return bool(kill)\n",
        new="        return kill is not None\n",
        caught_by=f"{_STOPPING}::test_stopping_asks_the_whole_group_first",
    ),
    _in_guard(
        name="only the leader is asked to end",
        old="os.killpg(self._leader, number)",
        new="os.kill(self._leader, number)",
        caught_by=f"{_STOPPING}::test_stopping_asks_a_grandchild_that_its_parent_waits_for",
    ),
    _in_keeper(
        name="the keeper adopts no orphans",
        old="        adopt_orphans()\n",
        new="",
        caught_by=f"{_GUARDS}::test_a_daemon_does_not_outlive_its_attempt_whose_guard_was_killed",
    ),
    _in_keeper(
        name="orphans of a killed guard live on",
        old="        self._kill_orphans()\n",
        new="",
        caught_by=f"{_NASTY}::test_when_a_guard_is_killed_nothing_of_its_attempt_is_left",
    ),
    _in_keeper(
        name="a member of the pool serves once",
        old="if one.member and one.number is None)",
        new="if False)",
        caught_by=f"{_NASTY}::test_members_of_the_pool_carry_out_one_task_after_another",
    ),
    _in_leader(
        name="a leader has no session of its own",
        old="    os.setsid()\n",
        new="",
        caught_by=f"{_NASTY}::test_a_child_may_have_a_terminal",
    ),
    _in_leader(
        name="limits are not set",
        old='    hold_to(order["limits"])\n',
        new="",
        caught_by=f"{_NASTY}::test_a_file_beyond_its_size_is_not_written",
    ),
    _in_leader(
        name="a child begins anywhere",
        old='    os.chdir(order["folder"])\n',
        new="",
        caught_by=f"{_RUNNER}::"
        "test_a_child_sees_only_what_it_may_and_finds_its_input_in_a_private_file",
    ),
    _in_leader(
        name="only the first task of a member begins in its folder",
        old='    os.chdir(order["folder"])\n',
        new='    if "_begun" not in globals():\n        os.chdir(order["folder"])\n'
        '    globals()["_begun"] = True\n',
        caught_by=f"{_ORDERS}::"
        "test_a_task_of_the_pool_finds_its_own_surroundings_whatever_the_one_before_did",
    ),
    _in_leader(
        name="a task is believed to have left its variables alone",
        old='    _surround_with(order["environment"], environment)\n',
        new='    _surround_with(order["environment"], globals().get("_last", environment))\n'
        '    globals()["_last"] = order["environment"]\n',
        caught_by=f"{_ORDERS}::"
        "test_a_task_of_the_pool_finds_its_own_surroundings_whatever_the_one_before_did",
    ),
    _in_pool(
        name="a member that left somebody behind stays",
        old="stays = left > 0 and not _left_somebody()",
        new="stays = left > 0",
        caught_by=f"{_NASTY}::test_a_member_that_left_somebody_behind_is_used_no_more",
    ),
    _in_work(
        name="a trace is printed with its secrets",
        old='mask_secrets("".join(traceback.format_exception(error)))',
        new='"".join(traceback.format_exception(error))',
        caught_by=f"{_SECRETS}::test_the_trace_that_the_runner_prints_shows_no_secret",
    ),
    _in_runner(
        name="anybody may read an order",
        old="os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)",
        new="os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)",
        caught_by=f"{_RUNNER}::"
        "test_a_child_sees_only_what_it_may_and_finds_its_input_in_a_private_file",
    ),
    _in_attempt(
        name="what nobody has read yet is lost at the end",
        old="        await self._drain()\n",
        new="        for reading in self._reading:\n            reading.cancel()\n",
        caught_by=f"{_REPORTS}::test_output_waits_for_a_slow_store_also_after_the_child_has_ended",
    ),
    _in_attempt(
        name="whoever holds the pipes is waited for",
        old="timeout=_DRAIN.total_seconds()",
        new="timeout=None",
        caught_by=f"{_OUTSIDERS}::test_an_attempt_ends_although_an_outsider_holds_its_pipes",
    ),
    _in_attempt(
        name="whoever prints after the end is listened to",
        old="left -= self._child.ended.done()",
        new="left -= 0",
        caught_by=f"{_OUTSIDERS}::"
        "test_an_outsider_that_prints_on_and_on_is_not_listened_to_for_ever",
    ),
    _in_attempt(
        name="one that had to be killed is told to have ended by itself",
        old="self._stopped_by = signal.SIGKILL.name",
        new="pass",
        caught_by=f"{_STOPPING}::test_one_that_ignores_the_request_is_killed_after_the_grace",
    ),
    _in_attempt(
        name="one that ended without a word has a result",
        old="if self._order.definition.runner is RunnerKind.COMMAND:\n",
        new="if True:\n",
        caught_by=f"{_RUNNER}::test_a_function_that_ends_without_a_word_has_crashed",
    ),
    _in_said(
        name="what a heartbeat tells shows secrets",
        old="return safe_excerpt(_whole_characters(str(value)), limit=_NAME_CHARACTERS)",
        new="return _whole_characters(str(value))[:_NAME_CHARACTERS]",
        caught_by="adapters/process/test_said.py::"
        "test_a_secret_is_masked_in_all_that_heartbeats_tell",
    ),
)

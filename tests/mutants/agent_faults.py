"""Faults that the tests of agent tasks must notice: with the real SDK and its command line."""

from functools import partial

from tests.mutants.fault import Fault, Part

_CRASHES = "agents/test_agent_crashes.py"
_HELPERS = "agents/test_agent_helpers.py"
_PLACES = "agents/test_agent_places.py"
_PROMPTS = "agents/test_agent_prompts.py"
_REFUSALS = "agents/test_agent_refusals.py"
_REVIEWS = "agents/test_agent_reviews.py"
_SANDBOX = "agents/test_agent_sandbox.py"
_SECRETS = "agents/test_agent_secrets.py"
_SHAPES = "agents/test_agent_shapes.py"
_TASKS = "agents/test_agent_tasks.py"
_TRAPS = "agents/test_agent_traps.py"
_TROUBLES = "agents/test_agent_troubles.py"

_KILLED_AT_FIVE_POINTS = (
    f"{_CRASHES}::test_a_child_killed_at_five_points_is_gone_on_with_and_nothing_is_asked_twice"
)
_KEPT_TO = (
    f"{_SANDBOX}::test_a_sandbox_is_refused_where_there_is_none_and_kept_to_where_there_is_one"
)
_HELPED = (
    f"{_HELPERS}::test_another_model_a_server_of_tools_and_an_agent_below_help_and_are_counted"
)
_STAY_TEXT = f"{_PROMPTS}::test_values_from_inputs_tasks_and_steps_stay_text"
_NOWHERE = f"{_SECRETS}::test_the_credential_is_nowhere_while_an_agent_works_and_nowhere_after"
_AS_LISTED = f"{_TASKS}::test_tools_are_used_as_listed_and_no_other"

_fault = partial(Fault, part=Part.AGENTS)
_in_house = partial(_fault, file="runners/agent/house.py")
_in_run = partial(_fault, file="runners/agent/run.py")
_in_prompts = partial(_fault, file="core/agents/prompts.py")

AGENT_FAULTS = (
    _in_house(
        name="a repository's own settings hold",
        old="setting_sources=[],",
        new='setting_sources=["project", "local"],',
        caught_by=f"{_PLACES}::test_a_repository_is_worked_on_without_running_what_stands_in_it",
    ),
    _in_house(
        name="files that a value names are opened",
        old="verbatim_prompts=True,",
        new="verbatim_prompts=False,",
        caught_by=_STAY_TEXT,
    ),
    _in_house(
        name="every tool there is may be seen",
        old="tools=list(step.tool_names),",
        new="tools=None,",
        caught_by=_AS_LISTED,
    ),
    _in_house(
        name="who may use some of a tool may use all of it",
        old="allowed_tools=list(step.tools),",
        new="allowed_tools=list(step.tool_names),",
        caught_by=f"{_TASKS}::test_only_the_named_uses_of_a_tool_are_allowed_and_todos_are_traced",
    ),
    _in_house(
        name="a sandbox that does not work is done without",
        old='"failIfUnavailable": True,',
        new='"failIfUnavailable": False,',
        caught_by=_KEPT_TO,
    ),
    _in_house(
        name="who asks to leave the sandbox may",
        old='"allowUnsandboxedCommands": False,',
        new='"allowUnsandboxedCommands": True,',
        caught_by=_KEPT_TO,
    ),
    _in_house(
        name="in a sandbox every command is allowed",
        old='"autoAllowBashIfSandboxed": False,',
        new='"autoAllowBashIfSandboxed": True,',
        caught_by=_KEPT_TO,
    ),
    _in_house(
        name="a sandbox's sockets stand where their paths are too long",
        old="_sandbox_folder(self._access) if plan.sandbox else",
        new="",
        caught_by=_KEPT_TO,
    ),
    _in_house(
        name="nobody looks whether there is a sandbox",
        old="        _check_sandbox(access)\n",
        new="        pass\n",
        caught_by=_KEPT_TO,
    ),
    _in_house(
        name="the command line tries again as long as it likes",
        old='"CLAUDE_CODE_MAX_RETRIES": str(max(access["retries"], for_fallback)),',
        new="",
        caught_by=f"{_TROUBLES}::test_what_passes_is_tried_again_and_a_rate_limit_costs_no_attempt",
    ),
    _in_house(
        name="without retries there is no other model",
        old="_RETRIES_BEFORE_FALLBACK if self._plan.fallback_model else 0",
        new="0",
        caught_by=_HELPED,
    ),
    _in_house(
        name="an agent does not wait for those below it",
        old='            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",\n',
        new="",
        caught_by=_HELPED,
    ),
    _in_house(
        name="turns of those below count as the agent's",
        old="answered.whole and answered.request.agent_id is None",
        new="answered.whole",
        caught_by=_HELPED,
    ),
    _in_house(
        name="servers of tools are not told of",
        old="mcp_servers={name: _server(one) for name, one in plan.mcp_servers.items()},",
        new="",
        caught_by=_HELPED,
    ),
    _in_house(
        name="an agent has the home of whoever started the worker",
        old='            "HOME": home,\n',
        new="",
        caught_by=_AS_LISTED,
    ),
    _in_house(
        name="an agent finds what is meant for its child",
        old='            **{name: "" for name in around if name.startswith("LONGSHORE_")},\n',
        new="",
        caught_by=_AS_LISTED,
    ),
    _in_house(
        name="who names the older list has none",
        old="return _OLDER_LIST in names and",
        new="return not names and",
        caught_by=f"{_TRAPS}::test_the_older_kind_of_list_is_there_for_those_who_name_it",
    ),
    _in_house(
        name="the memory of the child is not hidden",
        old="        hide_memory()\n",
        new="",
        caught_by="agents/test_agent_house.py::"
        "test_the_child_hides_its_memory_before_the_credential_is_used",
    ),
    _in_run(
        name="an answer that is there is asked for again",
        old="if (answer := self._session.answer) is not None:",
        new="if (answer := None) is not None:",
        caught_by=_KILLED_AT_FIVE_POINTS,
    ),
    _in_run(
        name="after a crash a conversation begins anew",
        old="resumes = self._session.begun\n",
        new="resumes = False\n",
        caught_by=_KILLED_AT_FIVE_POINTS,
    ),
    _in_run(
        name="after a crash everything is asked for once more",
        old="        if self._session.asked:\n            return CONTINUE\n",
        new="",
        caught_by=_KILLED_AT_FIVE_POINTS,
    ),
    _in_run(
        name="a conversation that is lost fails the task",
        old="verdict is not None and verdict.session_gone:",
        new="verdict is not None and verdict.limit:",
        caught_by=f"{_TRAPS}::test_a_conversation_that_nobody_can_go_on_with_begins_anew",
    ),
    _in_run(
        name="nobody is asked to put a result right",
        old="_REPAIRS = 1\n",
        new="_REPAIRS = 0\n",
        caught_by=f"{_SHAPES}::test_who_hands_in_nothing_is_asked_once_to_put_it_right",
    ),
    _in_run(
        name="feedback is not told",
        old='feedback=self._order["feedback"] if self._order["revision"] else None,',
        new="feedback=None,",
        caught_by=f"{_REVIEWS}::test_feedback_goes_on_in_the_same_conversations_also_after_a_crash",
    ),
    _in_run(
        name="anybody may do anything",
        old='if plan.permission_mode == BYPASS and not order["agent"]["allowBypass"]:',
        new="if False:",
        caught_by=f"{_REFUSALS}::test_what_is_wrong_with_a_task_is_told_before_the_model_is_asked",
    ),
    _in_run(
        name="a repository is fetched before a credential is looked for",
        old='    check_can_begin(order["agent"], plan)\n',
        new="",
        caught_by=f"{_REFUSALS}::"
        "test_without_credentials_a_task_fails_at_once_and_says_what_to_set",
    ),
    _in_prompts(
        name="what stands in a value is looked up",
        old="return _PLACE.sub(value, template)",
        new="return _PLACE.sub(value, _PLACE.sub(value, template))",
        caught_by=_STAY_TEXT,
    ),
    _in_prompts(
        name="a value can end its section",
        old='return _OF_SECTIONS.sub("&lt;", sanitise_prompt_input(text))',
        new="return sanitise_prompt_input(text)",
        caught_by=_STAY_TEXT,
    ),
    _fault(
        name="any result is good enough",
        file="runners/agent/results.py",
        old="if self._validator.is_valid(value):",
        new="if True:",
        caught_by=f"{_SHAPES}::test_a_result_that_came_dressed_up_is_taken_as_it_was_meant",
    ),
    _fault(
        name="a tool runs unseen if its hook fails",
        file="runners/agent/observing.py",
        old='on_failure="block"',
        new='on_failure="continue"',
        caught_by=f"{_TRAPS}::test_a_tool_that_nobody_could_see_begin_does_not_run",
    ),
    _fault(
        name="a refused credential is shown again and again",
        file="runners/agent/relaying.py",
        old="_FINAL: Final = frozenset({401, 403})",
        new="_FINAL: Final = frozenset({403})",
        caught_by=f"{_TRAPS}::"
        "test_a_refused_credential_is_shown_once_however_often_others_are_tried_again",
    ),
    _fault(
        name="what the API says of a credential is passed on",
        file="runners/agent/relaying.py",
        old="await out.write(mask.feed(piece))",
        new="await out.write(piece)",
        caught_by=_NOWHERE,
    ),
    _fault(
        name="an answer is counted each time that it is looked at",
        file="runners/agent/exchanges.py",
        old="        if self._settled:\n            return\n",
        new="",
        caught_by=_KILLED_AT_FIVE_POINTS,
    ),
    _fault(
        name="an agent's files stay when its work is done",
        file="runners/agent/places.py",
        old="shutil.rmtree(self.own, ignore_errors=True)",
        new="pass",
        caught_by=f"{_TASKS}::test_a_plain_answer_is_the_result",
    ),
)

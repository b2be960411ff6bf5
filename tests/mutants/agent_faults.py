"""Faults that the tests of agent tasks must notice: with the real SDK and its command line."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Argument, Condition, Drop, Replace, Text, Value

_CRASHES = "agents/test_agent_crashes.py"
_HELPERS = "agents/test_agent_helpers.py"
_WORKSPACES = "agents/test_agent_working_directory.py"
_PROMPTS = "agents/test_agent_prompts.py"
_REFUSALS = "agents/test_agent_refusals.py"
_REVIEWS = "agents/test_agent_reviews.py"
_SANDBOX = "agents/test_agent_sandbox.py"
_SECRETS = "agents/test_agent_secrets.py"
_SHAPES = "agents/test_agent_results.py"
_TASKS = "agents/test_agent_tasks.py"
_TRAPS = "agents/test_agent_traps.py"
_API_FAILURES = "agents/test_agent_failures.py"

_KILLED_AT_FIVE_POINTS = (
    f"{_CRASHES}::test_an_agent_killed_at_five_points_resumes_and_repeats_no_request"
)
_PERMISSIONS = (
    f"{_SANDBOX}::test_a_sandbox_is_enforced_where_available_and_fails_the_task_elsewhere"
)
_HELPED = f"{_HELPERS}::test_a_fallback_model_an_mcp_server_and_a_subagent_are_used_and_counted"
_STAY_TEXT = f"{_PROMPTS}::test_values_from_inputs_tasks_and_steps_stay_text"
_NOWHERE = f"{_SECRETS}::test_the_credential_is_not_visible_while_an_agent_works_or_afterwards"
_AS_LISTED = f"{_TASKS}::test_tools_are_used_as_listed_and_no_other"

_fault = partial(Fault, part=Part.AGENTS)

AGENT_FAULTS = (
    _fault(
        name="repositories of every host are fetched",
        at="execution.runners.agent.workspace:Workspace.open",
        do=Drop("hosts="),
        caught_by="agents/test_workspace.py"
        "::test_nothing_is_cloned_from_a_host_that_is_not_allowed",
    ),
    _fault(
        name="a repository's own settings hold",
        at="execution.runners.agent.session:AgentSession.options",
        do=Argument("ClaudeAgentOptions()", "setting_sources", "['project', 'local']"),
        caught_by=f"{_WORKSPACES}::test_no_program_of_a_repository_runs_when_an_agent_works_in_it",
    ),
    _fault(
        name="files that a value names are opened",
        at="execution.runners.agent.session:AgentSession.options",
        do=Argument("ClaudeAgentOptions()", "verbatim_prompts", "False"),
        caught_by=_STAY_TEXT,
    ),
    _fault(
        name="every tool there is may be seen",
        at="execution.runners.agent.session:AgentSession.options",
        do=Argument("ClaudeAgentOptions()", "tools", "None"),
        caught_by=_AS_LISTED,
    ),
    _fault(
        name="who may use some of a tool may use all of it",
        at="execution.runners.agent.session:AgentSession.options",
        do=Replace("tools", "$1.tool_names"),
        caught_by=f"{_TASKS}::test_only_the_named_uses_of_a_tool_are_allowed_and_todos_are_traced",
    ),
    _fault(
        name="a sandbox that does not work is done without",
        at="execution.runners.agent.session:_SANDBOX",
        do=Value("'failIfUnavailable':", "False"),
        caught_by=_PERMISSIONS,
    ),
    _fault(
        name="who asks to leave the sandbox may",
        at="execution.runners.agent.session:_SANDBOX",
        do=Value("'allowUnsandboxedCommands':", "True"),
        caught_by=_PERMISSIONS,
    ),
    _fault(
        name="in a sandbox every command is allowed",
        at="execution.runners.agent.session:_SANDBOX",
        do=Value("'autoAllowBashIfSandboxed':", "True"),
        caught_by=_PERMISSIONS,
    ),
    _fault(
        name="a sandbox's sockets stand where their paths are too long",
        at="execution.runners.agent.session:AgentSession.__post_init__",
        do=Value("= _sandbox_folder()", "$3"),
        caught_by=_PERMISSIONS,
    ),
    _fault(
        name="the sandbox is not checked",
        at="execution.runners.agent.session:check_prerequisites",
        do=Drop("_check_sandbox()"),
        caught_by=_PERMISSIONS,
    ),
    _fault(
        name="the command line tries again as long as it likes",
        at="execution.runners.agent.session:AgentSession._environment",
        do=Drop("'CLAUDE_CODE_MAX_RETRIES':"),
        caught_by=f"{_API_FAILURES}::test_temporary_errors_are_retried_and_a_rate_limit_counts_no_attempt",
    ),
    _fault(
        name="without retries there is no other model",
        at="execution.runners.agent.session:AgentSession._environment",
        do=Value("= fallback_model", "0"),
        caught_by=_HELPED,
    ),
    _fault(
        name="an agent does not wait for those below it",
        at="execution.runners.agent.session:AgentSession._environment",
        do=Drop("'CLAUDE_CODE_DISABLE_BACKGROUND_TASKS':"),
        caught_by="agents/test_agent_session.py::"
        "test_an_agent_may_not_leave_tasks_in_the_background",
    ),
    _fault(
        name="turns of those below count as the agent's",
        at="execution.runners.agent.session:AgentSession._after_response",
        do=Drop("is agent_id"),
        caught_by=_HELPED,
    ),
    _fault(
        name="tool servers are not passed to the agent",
        at="execution.runners.agent.session:AgentSession.options",
        do=Argument("ClaudeAgentOptions()", "mcp_servers", None),
        caught_by=_HELPED,
    ),
    _fault(
        name="an agent has the home folder of the worker's user",
        at="execution.runners.agent.session:AgentSession._environment",
        do=Drop("'HOME':"),
        caught_by=_AS_LISTED,
    ),
    _fault(
        name="an agent finds what is meant for its child",
        at="execution.runners.agent.session:AgentSession._environment",
        do=Drop("comprehension startswith()"),
        caught_by=_AS_LISTED,
    ),
    _fault(
        name="the memory of the child is not hidden",
        at="execution.runners.agent.session:AgentSession.open",
        do=Drop("hide_memory()"),
        caught_by="agents/test_agent_session.py::"
        "test_the_child_hides_its_memory_before_the_credential_is_used",
    ),
    _fault(
        name="a tool starts before its request is stored",
        at="execution.runners.agent.query:ConversationStore.before_tool",
        do=Drop("wait()"),
        caught_by="agents/test_conversation_store.py::"
        "test_a_tool_waits_until_the_worker_has_its_request",
    ),
    _fault(
        name="an answer that is there is asked for again",
        at="execution.runners.agent.runner:_StepRun.result",
        do=Replace("stored_answer _conversation", "None"),
        caught_by=_KILLED_AT_FIVE_POINTS,
    ),
    _fault(
        name="after a crash a conversation begins anew",
        at="execution.runners.agent.runner:_StepRun._query_and_validate",
        do=Replace("has_entries", "False"),
        caught_by=_KILLED_AT_FIVE_POINTS,
    ),
    _fault(
        name="after a crash everything is asked for once more",
        at="execution.runners.agent.runner:_StepRun._prompt",
        do=Drop("if has_prompt"),
        caught_by=_KILLED_AT_FIVE_POINTS,
    ),
    _fault(
        name="a conversation that is lost fails the task",
        at="execution.runners.agent.runner:_StepRun._query_and_validate",
        do=Condition("_SESSION_MISSING", False),
        caught_by=f"{_TRAPS}::test_a_conversation_that_cannot_be_resumed_starts_again",
    ),
    _fault(
        name="an invalid result is not sent back to the agent",
        at="execution.runners.agent.runner:_MAX_REPAIRS",
        do=Value("=", "0"),
        caught_by=f"{_SHAPES}::test_an_agent_without_a_result_gets_one_turn_to_repair_it",
    ),
    _fault(
        name="feedback is not passed to the agent",
        at="execution.runners.agent.runner:_StepRun._prompt",
        do=Argument("PromptRequest()", "feedback", "None"),
        caught_by=f"{_REVIEWS}::test_feedback_continues_the_same_conversations_also_after_a_crash",
    ),
    _fault(
        name="anybody may do anything",
        at="execution.runners.agent.runner:_checked_plan",
        do=Condition("permission_mode", False),
        caught_by=f"{_REFUSALS}::test_an_invalid_task_fails_before_any_model_request",
    ),
    _fault(
        name="a repository is fetched before a credential is looked for",
        at="execution.runners.agent.runner:_checked_plan",
        do=Drop("check_prerequisites()"),
        caught_by=f"{_REFUSALS}::"
        "test_without_credentials_a_task_fails_at_once_and_names_the_variables",
    ),
    _fault(
        name="a placeholder inside a value is replaced",
        at="core.agents.prompts:fill_template",
        do=Argument("sub()", 1, "_PLACEHOLDER.sub(value, $0)"),
        caught_by=_STAY_TEXT,
    ),
    _fault(
        name="a value can end its section",
        at="core.agents.prompts:_escape_value",
        do=Replace("sub()", "$2"),
        caught_by=_STAY_TEXT,
    ),
    _fault(
        name="any result is good enough",
        at="execution.runners.agent.results:ResultValidator.validate",
        do=Condition("is_valid()", True),
        caught_by=f"{_SHAPES}::test_a_wrapped_result_is_unwrapped",
    ),
    _fault(
        name="a tool runs unseen if its hook fails",
        at="execution.runners.agent.tracing:AgentTracer.hooks",
        do=Text("block", "continue"),
        caught_by=f"{_TRAPS}::test_a_tool_whose_start_cannot_be_traced_does_not_run",
    ),
    _fault(
        name="a refused credential is shown again and again",
        at="execution.runners.agent.gateway:_FINAL_STATUSES",
        do=Argument("frozenset()", 0, "{403}"),
        caught_by=f"{_TRAPS}::"
        "test_a_rejected_credential_is_sent_once_even_if_other_errors_are_retried",
    ),
    _fault(
        name="what the API says of a credential is passed on",
        at="execution.runners.agent.gateway:Gateway._return_response",
        do=Argument("write()", 0, "$1"),
        caught_by=_NOWHERE,
    ),
    _fault(
        name="an answer is counted each time that it is looked at",
        at="execution.runners.agent.gateway:Gateway._settle",
        do=Drop("if settled"),
        caught_by=_KILLED_AT_FIVE_POINTS,
    ),
    _fault(
        name="an agent's files stay when its work is done",
        at="execution.runners.agent.workspace:WorkingDirectory.remove",
        do=Drop("rmtree()"),
        caught_by=f"{_TASKS}::test_a_plain_answer_is_the_result",
    ),
)

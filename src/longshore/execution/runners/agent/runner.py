"""The agent runner: executes the steps of a plan, one conversation each.

A step is paid for once. The worker stores its result before the next step starts; an interrupted
conversation is resumed, and an answer that had already arrived is used. A result is accepted only
if it matches the step's schema; the model gets one turn to repair one that does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.core.agents.failures import (
    QueryFailure,
    QueryFailureReason,
    query_failure_of,
    schema_failure,
)
from longshore.core.agents.plan import BYPASS_PERMISSIONS, AgentPlan, AgentStep, read_plan
from longshore.core.agents.prompts import (
    CONTINUE_PROMPT,
    PromptRequest,
    PromptValues,
    UnknownPlaceholder,
    prompt_for,
    repair_prompt,
    revision_prompt,
)
from longshore.core.agents.transcripts import session_id
from longshore.core.tasks.failures import ErrorCategory, Failure, FailureRaised, error_text
from longshore.execution.runners.agent.query import ConversationStore, run_query
from longshore.execution.runners.agent.results import ResultValidator, ValidatedResult
from longshore.execution.runners.agent.session import AgentSession, check_prerequisites
from longshore.execution.runners.agent.workspace import open_working_directory
from longshore.execution.runners.channel import Channel

_MAX_REPAIRS = 1
_SCHEMA_MISMATCH = QueryFailureReason.SCHEMA_MISMATCH  # an answer that the agent can repair
_SESSION_MISSING = QueryFailureReason.SESSION_MISSING
_EMPTY_RESULT_PROMPT = "Your last message is empty, and it is to be the result. Write it now."


def run(spec: Mapping[str, Any], channel: Channel) -> Any:
    """Execute the spec's plan. Returns the last step's result."""
    return asyncio.run(_AgentAttempt(spec, channel).run())


class _AgentAttempt:
    """One attempt of an agent task."""

    def __init__(self, spec: Mapping[str, Any], channel: Channel) -> None:
        self._spec = spec
        self._channel = channel
        self._plan = _checked_plan(spec)
        self._artifacts = Path(spec["folder"]) / "artifacts"
        self._validators = {
            step.name: ResultValidator(step.output_schema) for step in self._plan.steps
        }

    async def run(self) -> Any:
        steps = self._plan.steps
        checkpoints = self._spec["checkpoints"]
        results = {step.name: checkpoints[step.name] for step in steps if step.name in checkpoints}
        directory = await asyncio.to_thread(
            open_working_directory, self._spec, self._plan, self._channel.send
        )
        session = AgentSession(self._spec, self._plan, self._channel, directory.folder)
        async with session.open():
            try:
                for step in steps:
                    await self._run_step(step, session, results)
            except BaseException:
                with contextlib.suppress(Exception):  # the first error matters more
                    await directory.save_changes(self._artifacts, session.channel.send)
                raise
            # If this fails, the files stay for the next attempt, which will have all results.
            await directory.save_changes(self._artifacts, session.channel.send)
            directory.remove()
        return results[steps[-1].name]

    async def _run_step(
        self, step: AgentStep, session: AgentSession, results: dict[str, Any]
    ) -> None:
        """Run the step unless ``results`` has its result; save the result in any case."""
        is_new = step.name not in results
        if is_new:
            tasks, earlier = self._spec["dependency_outputs"], dict(results)
            values = PromptValues(input=self._spec["input"], tasks=tasks, steps=earlier)
            step_run = _StepRun(step, session)
            results[step.name] = await step_run.result(self._validators[step.name], values)
        # Also an earlier result: the attempt that ran the step may have ended before it saved it.
        self._artifacts.mkdir(mode=0o700, exist_ok=True)
        text = json.dumps(results[step.name], indent=2, ensure_ascii=False) + "\n"
        (self._artifacts / step.output_file).write_text(text)
        if is_new and len(self._plan.steps) > 1:
            await asyncio.to_thread(self._channel.report_step, step.name, results[step.name])


@dataclass(eq=False, repr=False)
class _StepRun:
    """One step of an attempt."""

    step: AgentStep
    session: AgentSession

    def __post_init__(self) -> None:
        spec = self.session.spec
        name = session_id(spec["task_id"], self.step.name)
        stored = spec["conversations"].get(name)
        self._conversation = ConversationStore(name, stored, self.session.channel.send)
        self._deadline = asyncio.get_running_loop().time() + self.step.timeout.total_seconds()

    async def result(self, validator: ResultValidator, values: PromptValues) -> Any:
        """Returns the step's result.

        Raises:
            FailureRaised: the step failed.
        """
        if (answer := self._conversation.stored_answer) is not None:
            # An earlier attempt paid for the answer but ended before it could report it.
            validated = validator.validate(answer.structured, answer.text)
            if not validated.problems:
                self.session.channel.send(
                    "log", text=f"{self.step.name}: using the answer of an earlier attempt"
                )
                return validated.value
            prompt = self._repair_prompt(validated.problems)
        else:
            prompt = self._prompt(values)
        for repairs_left in range(_MAX_REPAIRS, -1, -1):
            validated, query_failure = await self._query_and_validate(prompt, validator, values)
            if query_failure is None:
                return validated.value
            if query_failure.reason is not _SCHEMA_MISMATCH or not repairs_left:
                raise FailureRaised(query_failure.failure)
            self.session.channel.send(
                "log", text=f"{self.step.name}: {query_failure.failure.message}; asking once more"
            )
            prompt = self._repair_prompt(validated.problems)
        raise AssertionError  # the last round returns or raises

    async def _query_and_validate(
        self, prompt: str, validator: ResultValidator, values: PromptValues
    ) -> tuple[ValidatedResult, QueryFailure | None]:
        resumes = self._conversation.has_entries
        query_failure, result = await self._query(prompt, resumes=resumes)
        if resumes and query_failure and query_failure.reason is _SESSION_MISSING:
            self._conversation.reset()
            query_failure, result = await self._query(self._prompt(values), resumes=False)
        if query_failure is not None and query_failure.reason is not _SCHEMA_MISMATCH:
            return ValidatedResult(), query_failure
        validated = validator.validate(result.get("structured_output"), result.get("result"))
        if not validated.problems:
            return validated, None
        # The SDK reports the problems of a result that it rejected itself only in "errors".
        problems = tuple(filter(None, result.get("errors") or ())) or validated.problems
        return ValidatedResult(problems=problems), schema_failure("; ".join(problems))

    async def _query(
        self, prompt: str, *, resumes: bool
    ) -> tuple[QueryFailure | None, dict[str, Any]]:
        step, session = self.step, self.session
        loop = asyncio.get_running_loop()
        timeout = timedelta(seconds=max(self._deadline - loop.time(), 0.0))
        tracer = session.tracer
        with tracer.trace_step(step.name, session_id=self._conversation.id, resumed=resumes):

            def trace_message(message: object) -> None:
                if session.stop_failure is None:  # the gateway has not stopped the agent
                    tracer.on_message(message)

            options = session.options(step, self._conversation, resumes=resumes)
            ending = await run_query(prompt, options, timeout=timeout, on_message=trace_message)
            ending = replace(
                ending,
                late=None if ending.late is None else step.timeout,
                model=session.model,
                wants_structure=step.output_schema is not None,
                **session.api_failure(),
            )
            if (query_failure := query_failure_of(ending)) is not None:
                if (stop_failure := session.stop_failure) is not None:
                    tracer.finish("stopped", stop_failure.message)
                    raise FailureRaised(stop_failure)
                how = "failed" if ending.late is None else "timeout"
                tracer.finish(how, query_failure.failure.message)
        return query_failure, dict(ending.result or {})

    def _repair_prompt(self, problems: tuple[str, ...]) -> str:
        return _EMPTY_RESULT_PROMPT if self.step.output_schema is None else repair_prompt(problems)

    def _prompt(self, values: PromptValues) -> str:
        request = PromptRequest(
            template=self.step.prompt,
            values=values,
            role=self.session.plan.role,
            checks=self.session.plan.checks,
            has_schema=self.step.output_schema is not None,
            feedback=self.session.spec["feedback"] if self.session.spec["revision"] else None,
            previous_output=self.session.spec["previous_output"],
        )
        if self._conversation.has_prompt:
            return CONTINUE_PROMPT
        # The results of earlier steps have changed, and only a full prompt contains them.
        if self._conversation.has_entries and request.feedback is not None and not values.steps:
            return revision_prompt(request)
        try:
            return prompt_for(request)
        except UnknownPlaceholder as error:
            raise _invalid(str(error)) from error


def _checked_plan(spec: Mapping[str, Any]) -> AgentPlan:
    plan, problems = read_plan(spec["options"])
    if plan is None:
        details = "; ".join(f"{problem.path}: {problem.message}" for problem in problems)
        raise _invalid(f"the definition of this agent is invalid: {details}")
    if plan.permission_mode == BYPASS_PERMISSIONS and not spec["agent"]["allowBypass"]:
        raise _invalid(
            f"permissionMode {BYPASS_PERMISSIONS} lets an agent do anything: set"
            " agent.allow_bypass for the"
            " workers that may, or name the tools that it needs"
        )
    check_prerequisites(spec["agent"], plan)
    return plan


def _invalid(message: str) -> FailureRaised:
    return FailureRaised(Failure(category=ErrorCategory.VALIDATION, message=error_text(message)))

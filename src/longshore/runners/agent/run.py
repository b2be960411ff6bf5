"""The agent runner: carries out the steps of a plan, one conversation each.

A step is paid for once. Its result is kept by the worker before the next one begins; a conversation
that broke off is gone on with, and if its answer had come already, that is taken. A result counts
only if it fits the step's schema; one that does not gets a turn to be put right.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from longshore.core.agents.endings import Ending, Verdict, shape_verdict, verdict_of
from longshore.core.agents.plan import BYPASS, AgentPlan, AgentStep, read_plan
from longshore.core.agents.prompts import (
    CONTINUE,
    Request,
    UnknownPlace,
    Values,
    prompt_for,
    repair_prompt,
    revision_prompt,
)
from longshore.core.agents.transcripts import session_id
from longshore.core.failures import ErrorCategory, Failed, Failure, error_text
from longshore.runners.agent.conversing import converse
from longshore.runners.agent.house import House, check_can_begin
from longshore.runners.agent.observing import Observer
from longshore.runners.agent.places import place_of
from longshore.runners.agent.results import Shape, Taken
from longshore.runners.agent.sessions import StepSession
from longshore.runners.channel import Channel

_REPAIRS = 1
_EMPTY = "Your last message is empty, and it is to be the result. Write it now."


def run(order: Mapping[str, Any], channel: Channel) -> Any:
    """Do what the order's plan says, and return the last step's result."""
    return asyncio.run(_AgentRun(order, channel).run())


class _AgentRun:
    """One attempt."""

    def __init__(self, order: Mapping[str, Any], channel: Channel) -> None:
        self._order = order
        self._channel = channel
        self._plan = _checked_plan(order)
        self._shapes = {step.name: Shape(step.output_schema) for step in self._plan.steps}

    async def run(self) -> Any:
        steps = self._plan.steps
        kept = self._order["checkpoints"]
        results = {step.name: kept[step.name] for step in steps if step.name in kept}
        place = await place_of(self._order, self._plan, self._channel.say)
        async with House(self._order, self._plan, self._channel, place) as house:
            try:
                for step in steps:
                    if step.name in results:
                        # Its own attempt may not have come to keep its files.
                        house.keep_result(step.output_file, results[step.name])
                    else:
                        results[step.name] = await self._result(step, house, results)
            except BaseException:
                with contextlib.suppress(Exception):  # why it failed matters more
                    await house.settle()
                raise
            # If this fails, the files stay for the next attempt, which will have all results.
            await house.settle()
            house.leave()
        return results[steps[-1].name]

    async def _result(self, step: AgentStep, house: House, results: Mapping[str, Any]) -> Any:
        conversation = _Step(self._order, self._plan, step, house)
        result = await conversation.result(self._shapes[step.name], self._values(results))
        house.keep_result(step.output_file, result)
        if len(self._plan.steps) > 1:
            await asyncio.to_thread(self._channel.step, step.name, result)
        return result

    def _values(self, results: Mapping[str, Any]) -> Values:
        return Values(
            input=self._order["input"],
            tasks=self._order["dependency_outputs"],
            steps=dict(results),
        )


class _Step:
    """One step of it."""

    def __init__(
        self, order: Mapping[str, Any], plan: AgentPlan, step: AgentStep, house: House
    ) -> None:
        self._order = order
        self._plan = plan
        self._step = step
        self._house = house
        name = session_id(order["task_id"], step.name)
        self._session = StepSession(name, order["sessions"].get(name), house.say)
        self._ends_at = asyncio.get_running_loop().time() + step.timeout.total_seconds()

    async def result(self, shape: Shape, values: Values) -> Any:
        """What the step comes to.

        Raises:
            Failed: nothing, and why.
        """
        if (answer := self._session.answer) is not None:
            # It was paid for by an attempt that could not bring it home.
            taken = shape.take(answer.structured, answer.text)
            if not taken.problems:
                self._house.say("log", text=f"{self._step.name}: the answer was there already")
                return taken.value
            prompt = self._repair_prompt(taken.problems)
        else:
            prompt = self._prompt(values)
        for repairs_left in range(_REPAIRS, -1, -1):
            taken, verdict = await self._ask(prompt, shape, values)
            if verdict is None:
                return taken.value
            if not verdict.shape or not repairs_left:
                raise Failed(verdict.failure)
            self._house.say("log", text=f"{self._step.name}: {verdict.failure.message}; once more")
            prompt = self._repair_prompt(taken.problems)
        raise AssertionError  # the last round returns or raises

    async def _ask(self, prompt: str, shape: Shape, values: Values) -> tuple[Taken, Verdict | None]:
        resumes = self._session.begun
        verdict, result = await self._query(prompt, resumes=resumes)
        if resumes and verdict is not None and verdict.session_gone:
            self._session.forget()
            verdict, result = await self._query(self._prompt(values), resumes=False)
        if verdict is not None and not verdict.shape:
            return Taken(), verdict
        taken = shape.take(result.get("structured_output"), result.get("result"))
        if not taken.problems:
            return taken, None
        # What was refused before it got here is told only there.
        problems = tuple(filter(None, result.get("errors") or ())) or taken.problems
        return Taken(problems=problems), shape_verdict("; ".join(problems))

    async def _query(self, prompt: str, *, resumes: bool) -> tuple[Verdict | None, dict[str, Any]]:
        step, house = self._step, self._house
        loop = asyncio.get_running_loop()
        within = timedelta(seconds=max(self._ends_at - loop.time(), 0.0))
        with house.observed(step, self._session.id, resumed=resumes) as observer:
            options = house.options(step, self._session, observer, resumes=resumes)
            talk = await converse(prompt, options, within=within, heard=self._heard(observer))
            ending = Ending.of(
                talk.error,
                talk.result,
                assistant_error=talk.assistant_error,
                stderr="\n".join(talk.stderr),
                late=step.timeout if talk.late else None,
                model=house.model,
                wants_structure=step.output_schema is not None,
                **house.api_trouble(),
            )
            verdict = verdict_of(ending)
            if verdict is not None and (stopped := house.stopped) is not None:
                observer.finish("stopped", stopped.message)
                raise Failed(stopped)
            if verdict is not None:
                observer.finish("timeout" if talk.late else "failed", verdict.failure.message)
        return verdict, dict(ending.result or {})

    def _heard(self, observer: Observer) -> Callable[[object], None]:
        """What is told of a conversation; of one that we have stopped, not that the API failed."""

        def hear(message: object) -> None:
            if self._house.stopped is None:
                observer.message(message)

        return hear

    def _repair_prompt(self, problems: tuple[str, ...]) -> str:
        return _EMPTY if self._step.output_schema is None else repair_prompt(problems)

    def _prompt(self, values: Values) -> str:
        request = Request(
            template=self._step.prompt,
            values=values,
            role=self._plan.role,
            checks=self._plan.checks,
            schema=self._step.output_schema is not None,
            feedback=self._order["feedback"] if self._order["revision"] else None,
            previous_output=self._order["previous_output"],
        )
        if self._session.asked:
            return CONTINUE
        # What earlier steps came to has changed with them, and only a whole prompt tells it.
        if self._session.begun and request.feedback is not None and not values.steps:
            return revision_prompt(request)
        try:
            return prompt_for(request)
        except UnknownPlace as error:
            raise _refused(str(error)) from error


def _checked_plan(order: Mapping[str, Any]) -> AgentPlan:
    plan, problems = read_plan(order["options"])
    if plan is None:
        raise _refused("; ".join(f"{one.path}: {one.message}" for one in problems))
    if plan.permission_mode == BYPASS and not order["agent"]["allowBypass"]:
        message = (
            f"permissionMode {BYPASS} lets an agent do anything: set agent.allow_bypass for the"
            " workers that may, or name the tools that it needs"
        )
        raise _refused(message)
    check_can_begin(order["agent"], plan)
    return plan


def _refused(message: str) -> Failed:
    return Failed(Failure(category=ErrorCategory.VALIDATION, message=error_text(message)))

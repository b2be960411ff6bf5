"""The command by which anybody can check what is promised: ``sim``.

Here is its command line alone; what it does is imported when it runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from longshore.interfaces.cli.options import Here, command


@command(
    ("longshore sim", "a thousand runs, on all cores"),
    ("longshore sim --seeds 200000 --from 1000", "a night's work"),
    ("longshore sim --weather aws --seeds 2000", "as on AWS"),
    ("longshore sim --seed 4711 --trace", "one run, and all that happened in it"),
    output=True,
)
def sim(
    here: Here,
    *,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="How many runs.")
    ] = 1_000,
    first: Annotated[
        int, typer.Option("--from", metavar="SEED", min=0, help="The seed of the first run.")
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="SEED", min=0, help="Only this run.", show_default=False),
    ] = None,
    acts: Annotated[
        str | None,
        typer.Option(
            "--acts",
            metavar="0,2,…",
            help="With --seed: of what people do in it, only these.",
            show_default=False,
        ),
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(
            "--without",
            metavar="FAULT,…",
            help="With --seed: faults that are left out, such as crash or message-dropped.",
            show_default=False,
        ),
    ] = None,
    weather: Annotated[
        str,
        typer.Option(
            "--weather",
            metavar="NAME",
            help="What the runs stand on: any, or aws with its streams, functions and indexes.",
        ),
    ] = "any",
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed: print all that happened.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            max=256,
            help="How many processes at once. [default: one a core]",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Simulate the whole system under faults, and check that it keeps what it promises.

    Each seed is one run of the real services on a simulated clock: workers that crash and stand
    still, calls whose answers are lost, messages that come twice, late or never. At the end, all
    that was stored is audited. The same seed gives the same run, bit for bit. A run that fails is
    shrunk to the least that fails, and printed with the command that repeats it. Exits with 1 if a
    run failed. Nothing on this machine is touched.
    """
    from longshore.interfaces.cli import simulating

    asked = simulating.Asked(
        seeds=range(first, first + seeds),
        seed=seed,
        acts=acts,
        without=without,
        weather=weather,
        trace=trace,
        jobs=jobs,
    )
    return simulating.simulate(here, asked)

"""Answers of the fake model to the agents in the documentation."""

from verification.messages_api import Script, Usage, structured, text, tool_use

# More than the budget on the page.
EXPENSIVE = Usage(input_tokens=10_000, output_tokens=100)

ANSWERS = (
    Script.of(text("Good morning, Ada."), when="Greet Ada"),
    Script.of(
        tool_use("Bash", {"command": "sort -rnk2 <<< '04:12 5.1'"}, preamble="I sort them."),
        structured({"time": "04:12", "metres": 5.1}),
        when="Find the highest tide",
        per_session=True,
    ),
    Script.of(text("At 04:12 the water is at 5.1 metres."), when="Write one sentence"),
    Script.of(
        tool_use(
            "Bash", {"command": "date -u +%H:%M"}, preamble="I look at the clock.", usage=EXPENSIVE
        ),
        text("The ferries of this hour have left."),
        when="in the harbour",
        per_session=True,
    ),
    Script.of(
        text("Fog on the long quay.\nA horn counts the hidden ships.\nOne gull knows them all."),
        when="Write a haiku",
    ),
)

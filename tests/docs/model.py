"""What the model says to the agents of the pages: a page is run without paying anybody."""

from longshore.testing.messages_api import Script, Usage, structured, text, tool_use

# More than the budget on the page.
DEAR = Usage(input_tokens=10_000, output_tokens=100)

ANSWERS = (
    Script.of(text("Good morning, Ada."), when="Greet Ada"),
    Script.of(
        tool_use("Bash", {"command": "sort -rnk2 <<< '04:12 5.1'"}, say="I sort them."),
        structured({"time": "04:12", "metres": 5.1}),
        when="Find the highest tide",
        each_session=True,
    ),
    Script.of(text("At 04:12 the water stands at 5.1 metres."), when="Write one sentence"),
    Script.of(
        tool_use("Bash", {"command": "date -u +%H:%M"}, say="I look at the clock.", usage=DEAR),
        text("The ferries of this hour have left."),
        when="Tell what goes on in the harbour",
        each_session=True,
    ),
    Script.of(
        text("Fog on the long quay.\nA horn counts the hidden ships.\nOne gull knows them all."),
        when="Write a haiku",
    ),
)

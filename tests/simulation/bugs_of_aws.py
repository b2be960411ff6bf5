"""Bugs that only AWS brings out: events come later than rows, batches fail in part, and the client
library asks again by itself."""

from tests.simulation.bugs_of_tasks import Bug

_RELAY = "services/relay.py"
_REFUSED = "        failed |= {places[event.id] for event in await self._publish(events)}\n"
_FIRST = "return next((place for place in map(self._place_of, records) if place in failed), None)"
_STUCK = "return [event for event in ends if split_task_id(event.entity_id)[0] in stuck]"
_STILL_COMING = (
    "        if not found and (await self._job(job_id)).last_sequence >= place.sequence:\n"
)

BUGS_OF_AWS = tuple(
    Bug(name, path, text, instead, weather="aws")
    for name, path, text, instead in (
        (
            "the relay does not look which events the bus has refused",
            _RELAY,
            _REFUSED,
            "        await self._publish(events)\n",
        ),
        (
            "the relay has the last failed record come again and not the first",
            _RELAY,
            _FIRST,
            _FIRST.replace("map(self._place_of, records)", "map(self._place_of, records[::-1])"),
        ),
        (
            "the relay takes events for told when the bus did not answer",
            _RELAY,
            '            logger.exception("relay.refused")\n            return events\n',
            '            logger.exception("relay.refused")\n            return ()\n',
        ),
        (
            "the relay tells the first event of a change alone",
            _RELAY,
            "            events += told\n",
            "            events += told[:1]\n",
        ),
        (
            "the dispatcher's function has nothing come again",
            "services/dispatcher.py",
            _STUCK,
            "return []",
        ),
        (
            "the function that saves events answers that all is well when it is not",
            "testing/simulation/functions.py",
            "                failed.append(event)\n",
            "                continue\n",
        ),
        (
            "a conflict with a change that the library made twice is somebody else's",
            "services/transitions.py",
            "                conflict.perhaps_ours |= unheard\n",
            "                conflict.perhaps_ours = unheard\n",
        ),
        (
            "a resume that is not in the history yet was never made",
            "services/resuming.py",
            _STILL_COMING,
            "        if False:\n",
        ),
    )
)

"""The history auditor: reads what a backend has stored and holds it against DESIGN's invariants.

It shares no code with what it checks. States, events, ids and bit sets are written down here a
second time, as this part understands them; a mistake would have to be made twice to pass.

``evidence`` says what is looked at, ``from_memory``, ``from_sqlite`` and ``from_dynamo`` gather it,
and ``audit`` judges it.
"""

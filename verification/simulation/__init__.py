"""The whole system in one thread on a clock that leaps: one seed is one run, bit for bit.

The services are the real ones, wired as they always are. What they stand on is simulated: time,
processes that crash and stand still, a store whose answers get lost, a queue that loses, delays and
doubles messages, a bus that brings events late and twice. At the end the faults stop, the work is
seen to its end, and what was stored is audited.
"""

"""The whole system in one thread on a simulated clock: a seed gives the same run, bit for bit.

The services are the real ones, wired as usual. Simulated are the clock, processes that crash and
pause, a store whose answers get lost, a queue that loses, delays and duplicates messages, and a bus
that delivers events late and twice. At the end the faults stop, the work is finished, and the
stored data is audited.
"""

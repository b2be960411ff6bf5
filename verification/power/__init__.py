"""Power loss: after it, the database opens and everything that was promised is stored.

``recorder`` and ``vfs`` record each write, sync, rename and removal of the SQLite backend.
``workload`` makes the services write, while ``oracle`` records what they answered. ``disk`` draws
what may be on disk if the power fails at one of these operations. ``checks`` opens that disk and
looks for everything that was promised before.

``python -m verification.power --cuts 2000`` runs 2,000 power cuts.
"""

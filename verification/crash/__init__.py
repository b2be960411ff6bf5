"""The crash matrix: real processes are killed at each failpoint in turn, and others go on.

``python -m verification.crash`` runs a small workload that touches everything: a client
that submits, cancels and replays, a worker with real children, and the one that comes after it. In
the n-th run one of them is killed by SIGKILL at the n-th failpoint it reaches, for n = 1, 2, 3 …
until it ends uninterrupted. Whoever comes next finishes the work, and then everything that is
stored, and every note that tasks and client have made, must agree.
"""

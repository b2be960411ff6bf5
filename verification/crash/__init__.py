"""The crash matrix: kill real processes at each failpoint, and check what is left.

``python -m verification.crash`` runs a small workload that uses every part of a backend: a client
that submits, cancels and replays, a worker with real children, and the worker's successor. In the
n-th run one of these processes is killed by SIGKILL at the n-th failpoint that it reaches, for
n = 1, 2, 3 … until it ends without being killed. Its successor finishes the work. Then the stored
data must agree with the notes of the tasks and of the client.
"""

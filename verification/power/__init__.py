"""Power loss: what was promised is there afterwards, and the file opens.

``recorder`` and ``vfs`` note every write, sync, rename and removal that the SQLite backend asks
the machine for; ``workload`` makes the services ask for a lot of it while ``oracle`` notes what
was answered; ``disk`` says what may be left if the power goes at one of these operations; and
``checks`` opens what is left and looks for everything that had been promised by then.

``python -m verification.power --cuts 2000`` does it at length.
"""

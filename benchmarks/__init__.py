"""How fast Longshore is on this machine, against the floor that the machine itself sets.

Every rate is measured in turns with the bare operation it is made of, in the same run, because a
disk's fsync can take ten times as long an hour later. Ratios and counts are what to compare.
"""

"""One module per peer, imported in the peer's own environment.

An adapter uses only its peer's public interface and the bodies of `benchmarks.peers.bodies`. All
functions may be coroutine functions, if `submit` is one:

    install()                        create the schema in an empty database (optional)
    connect(), close()               around the calls below, not timed (optional)
    submit(body, number)             submit one task
    submit_high(body, number)        submit one task that precedes those of `submit_bulk`
    submit_bulk(count, body, first)  submit many tasks with the peer's own bulk call
    submit_jobs(count)               submit many independent jobs of one no-op
    fan_out(count)                   submit no-ops and one `join` that runs after all of them
    dag(count)                       submit layers of 100 no-ops, each after two of the last layer
    released(count, body)            how many tasks of that `submit_bulk` were released un-begun

Run as a module, an adapter is the peer's worker if the peer has no worker command.
"""

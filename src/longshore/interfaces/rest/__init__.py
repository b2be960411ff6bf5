"""The REST door: ``/v1``, JSON, keys. No decisions: it reads, calls a service, answers."""

"""The REST API ``/v1``: parses requests, calls ``Application``, encodes its documents."""

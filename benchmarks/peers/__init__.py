"""Longshore beside other Python job queues, in one run: each round measures every peer once."""

"""Proofs that are not shipped: simulator, crash matrix, power loss, a fake Messages API."""

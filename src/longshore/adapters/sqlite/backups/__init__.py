"""Backups of a data folder: made while it is used, checked when they are restored."""

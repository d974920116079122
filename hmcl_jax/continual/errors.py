"""Errors of runs."""


class RunError(ValueError):
    """A run directory that cannot be used as asked; the message says what to do."""

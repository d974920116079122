"""Errors of stores and collections; their messages name the file, the problem and the remedy."""


class StoreError(ValueError):
    """A store that is missing, damaged or inconsistent."""


class IngestError(ValueError):
    """A collection of pictures or features that cannot be read."""

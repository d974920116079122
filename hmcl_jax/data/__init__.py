"""Streams of tasks: the feature store, the embedded pocket stream, synthetic streams."""

"""Streams of tasks: feature stores, the embedded and synthetic streams, collections on disk."""

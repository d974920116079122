"""Figures; nothing else in the library imports matplotlib."""

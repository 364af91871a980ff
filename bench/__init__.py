"""Measurements of the real thing, each against a reference in the same run."""

"""Engines: each loads a model in a process of its own and talks to its node in messages."""

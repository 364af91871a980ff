"""Clusters in one process: the real state machines, on a simulated network and clock."""

"""Hypothesis settings for the property tests of the protocols."""

from hypothesis import HealthCheck, settings

# The machine's load must not decide whether a test passes.
settings.register_profile("protocols", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("protocols")

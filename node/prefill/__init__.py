"""Prefill for another engine: asking for it, giving it, and injecting what comes."""

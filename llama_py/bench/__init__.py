"""Benchmarks: ``llama-py bench NAME``. Each describes what it measures, and checks its results."""

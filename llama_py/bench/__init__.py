"""Benchmarks: ``llama-py bench NAME``. Each says what it measures, and checks that it was right."""

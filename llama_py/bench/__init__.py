"""Benchmarks for one's own model or server: ``llama-py bench NAME``. Each checks its results."""

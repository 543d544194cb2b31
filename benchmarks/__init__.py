"""Comparisons with llama-server and llama-cpp-python, and what makes the figures of the docs.

``python -m benchmarks NAME``, in a checkout: it has all of ``llama-py bench`` too.
"""

"""The figures of the docs: this library measured, simulated, and compared with other programs.

``python -m benchmarks NAME``, in a checkout: it has all of ``llama-py bench`` too.
"""

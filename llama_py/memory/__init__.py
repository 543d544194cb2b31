"""Decisions about reuse: pure Python, no ctypes. A context is seen through a small protocol."""

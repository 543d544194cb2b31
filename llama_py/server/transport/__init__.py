"""Connections and bytes: what comes in, within limits, and how a response goes out."""

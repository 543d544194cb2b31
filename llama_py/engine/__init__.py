"""Requests in, events out: a pure scheduler, one runner that decodes, and the engine that drives."""

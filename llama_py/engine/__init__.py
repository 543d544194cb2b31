"""Requests in, events out: a pure scheduler, one runner that decodes, an engine that drives."""

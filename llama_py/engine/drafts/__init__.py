"""Speculative decoding: who drafts, what is drafted, and whether it pays."""

"""Saved states in RAM and on disk: the tiers below the context's memory."""

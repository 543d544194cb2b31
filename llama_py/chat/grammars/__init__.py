"""Grammars of constrained replies, in GBNF and in llguidance's notation."""

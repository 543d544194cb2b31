"""``Llama.score``: how likely the model finds given continuations."""

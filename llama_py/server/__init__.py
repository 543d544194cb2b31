"""``llama-py serve``: the engine behind HTTP, in the forms of several APIs."""

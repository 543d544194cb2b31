"""What people call: ``Llama``, ``AsyncLlama``, ``ChatSession``, and what belongs to them."""

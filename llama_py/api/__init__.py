"""The public interface: ``Llama``, ``AsyncLlama``, ``ChatSession``, and their parts."""

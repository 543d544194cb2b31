"""Versions: of this package, and of the llama.cpp that its declarations were generated from."""

__all__ = ["LLAMA_CPP_COMMIT", "__version__"]

__version__ = "0.1.0"

#: The pinned commit of llama.cpp (see ``vendor/llama.cpp.toml``).
LLAMA_CPP_COMMIT = "0c1e57098"

"""Versions: of this package, and of the llama.cpp that its declarations were generated from."""

__all__ = ["FINGERPRINT", "LLAMA_CPP_COMMIT", "__version__"]

__version__ = "0.1.0"

#: The pinned commit of llama.cpp (see ``vendor/llama.cpp.toml``).
LLAMA_CPP_COMMIT = "0c1e57098"

#: What computes replies, as ``system_fingerprint`` and ``build_info`` say it. It begins as
#: llama-server's does; the number of a build is only known to llama.cpp's own repository.
FINGERPRINT = f"b0-{LLAMA_CPP_COMMIT}-llama_py-{__version__}"

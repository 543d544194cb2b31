"""Versions: of this package, and of the llama.cpp that its declarations were generated from."""

__all__ = ["FINGERPRINT", "LLAMA_CPP_COMMIT", "__version__"]

__version__ = "0.1.0"

#: The pinned release of llama.cpp (see ``vendor/llama.cpp.toml``), or nine digits of a commit.
LLAMA_CPP_COMMIT = "b11549"

#: What computes replies, as ``system_fingerprint`` and ``build_info`` say it. It begins as
#: llama-server's does, with the number of the build: 0 for a commit that is not a release.
FINGERPRINT = f"{LLAMA_CPP_COMMIT}-llama_py-{__version__}"
if len(LLAMA_CPP_COMMIT) == 9:
    FINGERPRINT = f"b0-{FINGERPRINT}"

"""Tools for model files: ``split``, ``merge``, ``edit``, ``diff``, ``quantize``, ``perplexity``."""

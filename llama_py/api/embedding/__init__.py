"""Vectors of texts: ``Embedder``, ``AsyncEmbedder`` and their calls."""

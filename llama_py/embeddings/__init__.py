"""Vectors of texts: inputs are packed into batches, computed by a context of their own, and pooled.

``queue`` takes the inputs of calls and computes them in a thread of its own, those of several calls
together. ``packing`` decides what goes into a batch, ``computing`` runs it, ``pooling`` makes
vectors of its rows. ``inputs`` reads what callers give, and ``pairs`` puts a query and a document
together.
"""

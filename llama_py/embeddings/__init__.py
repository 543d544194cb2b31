"""Vectors of texts: inputs are packed into batches, computed by contexts of their own, and pooled.

Callers tokenize, post a job to ``queue.EmbeddingQueue`` and wait. Each thread of the queue takes
inputs of all jobs (``packing``), runs them through its own contexts, which have no pooling
(``computing``), and hands the rows to the jobs, which pool (``pooling``). ``pairs`` puts a query
and a document together for rerankers; ``inputs`` reads what callers give; ``vector_cache`` keeps
vectors of texts on the disk.

On a CPU, small encoders have one thread of the queue per core. One context serves every way of
pooling, and a long input of a causal model is computed piece by piece; only classification heads,
which llama.cpp computes, need a second context. An encoder must get an input at once, and llama.cpp
ends the process if it is larger than the context was made for, so contexts are replaced when a
longer input comes. While anybody embeds, contexts take turns on the cores
(``core.host.core_turns``): two that compute at once are slower than one after the other.
"""

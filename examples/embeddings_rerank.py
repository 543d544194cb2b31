"""Search in two steps: the nearest vectors first, then a closer look at those few.

    python embeddings_rerank.py [RERANKER.gguf]

A reranker reads question and document together. Without one, the vectors of all tokens are compared
(late interaction), which any embedding model can do.
"""

import sys

import numpy as np

from llama_py import Embedder, demo_model_path, max_similarity

QUESTION = "What is 2 + 3?"
DOCUMENTS = [
    "What is the weather in Paris?",
    "What is 2 + 4?",
    "Count to 5.",
    "What is the capital of Spain?",
    "What is 9 + 3?",
]


def main() -> None:
    """Choose three by their vectors, and put them into a better order."""
    with Embedder(demo_model_path()) as embedder:
        cosines = embedder.embed(DOCUMENTS) @ embedder.embed(QUESTION)
        nearest = [DOCUMENTS[index] for index in np.argsort(-cosines)[:3]]
        print("nearest:", nearest)
        if len(sys.argv) > 1:
            with Embedder(sys.argv[1]) as reranker:
                ranked = [
                    (each.score, each.document) for each in reranker.rerank(QUESTION, nearest)
                ]
        else:
            query = embedder.embed_tokens(QUESTION)
            parts = embedder.embed_tokens(nearest)
            scores = [max_similarity(query, part) / len(query) for part in parts]
            ranked = sorted(zip(scores, nearest, strict=True), reverse=True)
        for score, text in ranked:
            print(f"{score:.2f} {text}")


if __name__ == "__main__":
    main()

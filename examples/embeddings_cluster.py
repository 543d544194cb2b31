"""Put texts into groups: k-means on the sphere of their vectors, in a few lines of numpy."""

import sys

import numpy as np

from llama_py import Embedder, demo_model_path

TEXTS = [
    "What is 2 + 3?",
    "What is the capital of France?",
    "What is 4 + 1?",
    "What is the capital of Spain?",
    "What is 7 + 2?",
    "What is the capital of Italy?",
]


def grouped(vectors: np.ndarray, count: int) -> np.ndarray:
    """The number of each vector's group. The first centres are as far apart as can be."""
    centres = [vectors[0]]
    while len(centres) < count:
        nearest = np.max(vectors @ np.stack(centres).T, axis=1)
        centres.append(vectors[np.argmin(nearest)])
    table = np.stack(centres)
    for _ in range(20):
        groups = np.argmax(vectors @ table.T, axis=1)
        sums = np.stack([vectors[groups == each].sum(axis=0) for each in range(count)])
        table = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return groups


def main() -> None:
    """Print the groups."""
    with Embedder(sys.argv[1] if len(sys.argv) > 1 else demo_model_path()) as embedder:
        groups = grouped(embedder.embed(TEXTS), 2)
    for number in range(2):
        print(number, [text for text, group in zip(TEXTS, groups, strict=True) if group == number])


if __name__ == "__main__":
    main()

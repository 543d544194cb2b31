"""Find the paragraphs of a folder of text files that are nearest to a question.

    python embeddings_search.py FOLDER QUESTION [MODEL.gguf]

The bundled model knows very little of the world; with an embedding model, meaning counts.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from llama_py import Embedder, demo_model_path

NOTES = {
    "sums.txt": "What is 4 + 1?\n\nWhat is 7 + 2?",
    "places.txt": "What is the capital of Spain?\n\nWhat is the weather in Rome?",
    "people.txt": "My name is Alice.\n\nMy name is Bob.",
}


def paragraphs(folder: Path) -> list[tuple[str, str]]:
    """Name of the file and text of each paragraph."""
    files = sorted(folder.rglob("*.txt"))
    texts = [(file.name, file.read_text(encoding="utf-8")) for file in files]
    return [(name, part.strip()) for name, text in texts for part in text.split("\n\n") if part]


def main() -> None:
    """Embed the folder once, and the question."""
    folder, question, model = [*sys.argv[1:4], *[None] * 3][:3]
    with tempfile.TemporaryDirectory() as made, Embedder(model or demo_model_path()) as embedder:
        if folder is None:
            folder = made
            for name, text in NOTES.items():
                Path(made, name).write_text(text, encoding="utf-8")
        found = paragraphs(Path(folder))
        vectors = embedder.embed([text for _, text in found], truncate=True)
        cosines = vectors @ embedder.embed(question or "What is the capital of France?")
        for index in np.argsort(-cosines)[:3]:
            name, text = found[index]
            print(f"{cosines[index]:.2f} {name}: {text}")


if __name__ == "__main__":
    main()

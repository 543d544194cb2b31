# requires: lmql==0.7.3 numpy
"""LMQL's backend: its generate loop with scores and biases, and scores of given tokens."""

import sys

import numpy as np
from lmql.models.lmtp.backends.llama_cpp_model import LlamaCppModel

model = LlamaCppModel(f"llama.cpp:{sys.argv[1]}", n_ctx=512)
ids = np.array([model.llm.tokenize(b"2 + 3 =")])
streamed = []


def streamer(tokens: np.ndarray, scores: np.ndarray) -> None:
    streamed.append((tokens.shape, scores.shape))


found = model.generate(
    ids,
    np.ones_like(ids),
    temperature=0.0,
    max_new_tokens=4,
    bias_tensor=None,
    streamer=streamer,
)
vocabulary = model.llm.n_vocab()
assert found.sequences.shape == (1, 4)
assert found.scores.shape == (4, 1, vocabulary)
assert streamed == [((1, n), (n, 1, vocabulary)) for n in (1, 2, 3)], streamed
assert [int(row[0].argmax()) for row in found.scores] == found.sequences[0].tolist()
allowed = model.llm.tokenize(b" 7", add_bos=False)
biases = [dict.fromkeys(allowed, 100.0)]
biased = model.generate(
    ids,
    np.ones_like(ids),
    temperature=0.0,
    max_new_tokens=1,
    bias_tensor=biases,
    streamer=streamer,
)
assert biased.sequences[0][0] in allowed, biased.sequences
scores = model.score(ids, np.ones_like(ids))
assert scores.shape == ids.shape
assert scores[0, 0] == 0.0
assert np.all(scores[0, 1:] < 0)
print(model.llm.detokenize(found.sequences[0].tolist()), scores.sum(), model.model_info())

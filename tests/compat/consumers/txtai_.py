# requires: txtai==9.14.0 torch==2.13.0
"""txtai's LLM, and an index whose vectors are the model's."""

import sys

from txtai import LLM, Embeddings

llm = LLM(sys.argv[1], n_ctx=512, gpu=False)
text = llm([{"role": "user", "content": "What is 2 + 3?"}], maxlength=64, temperature=0.0)
assert text == "2 + 3 = 5.", text
parts = list(llm("2 + 3 =", maxlength=16, stream=True, temperature=0.0))
assert len(parts) > 1, parts

texts = ["The sky is blue.", "Two and three make five.", "A cat sleeps on the sofa."]
options = {"maxlength": 512, "vectors": {"pooling_type": 1}}  # the mean, also of a chat model
index = Embeddings(path=sys.argv[1], content=True, gpu=False, **options)
index.index(texts)
for each in texts:
    assert index.search(each, 1)[0]["text"] == each, each
print(text, len(parts), index.search("The sky is blue.", 1)[0]["score"])

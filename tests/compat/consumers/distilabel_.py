# requires: distilabel==1.5.3 requests
"""distilabel's LLM."""

import sys

from distilabel.models import LlamaCppLLM

llm = LlamaCppLLM(
    model_path=sys.argv[1], n_gpu_layers=0, n_ctx=512, extra_kwargs={"some": 1}, verbose=False
)
llm.load()
found = llm.generate_outputs(
    inputs=[[{"role": "user", "content": "What is 2 + 3?"}]], max_new_tokens=16, temperature=0.0
)
text = found[0]["generations"][0]
assert text == "2 + 3 = 5.", found
print(text)

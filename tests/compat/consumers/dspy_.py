# requires: dspy==2.5.43 dspy-ai==2.5.43
"""DSPy's client of ``llama_cpp.Llama``, in a program with a signature."""

import sys

import dsp
import dspy
from llama_cpp import Llama

llm = Llama(sys.argv[1], n_ctx=2048, verbose=False)
chat = dsp.LlamaCpp(model="demo", llama_model=llm, model_type="chat", max_tokens=32)
assert chat("What is 2 + 3?") == ["2 + 3 = 5."], chat.history
dspy.settings.configure(lm=chat)
found = dspy.Predict("question -> answer")(question="What is 2 + 3?")
assert found.answer, found
print(chat("What is 2 + 3?"), repr(found.answer))

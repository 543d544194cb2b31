"""How sure the model is: log-probabilities of a reply, and of a given text."""

import math

from llama_py import Llama, demo_model_path

with Llama(demo_model_path()) as llm:
    response = llm.create_chat_completion(
        [{"role": "user", "content": "What is 2 + 3?"}],
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    for entry in response["choices"][0]["logprobs"]["content"]:
        others = [f"{o['token']!r} {math.exp(o['logprob']):.3f}" for o in entry["top_logprobs"]]
        print(f"{entry['token']!r:12} {math.exp(entry['logprob']):.3f}   of  {', '.join(others)}")

    # With echo and max_tokens=0 nothing is generated: the prompt is scored.
    for text in ("Count from 1 to 5.", "Count 5 to from 1."):
        choice = llm.create_completion(text, echo=True, max_tokens=0, logprobs=0)["choices"][0]
        values = choice["logprobs"]["token_logprobs"][1:]  # nothing comes before the first token
        print(f"{text!r}: perplexity {math.exp(-sum(values) / len(values)):.1f}")

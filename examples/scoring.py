"""Which answer does the model find most likely? The question is evaluated once for all of them."""

import math

from llama_py import Llama, demo_model_path

with Llama(demo_model_path()) as llm:
    question = [{"role": "user", "content": "What is 2 + 3?"}]
    answers = [f"2 + 3 = {number}." for number in range(10)]
    scores = llm.score(question, answers)
    best = max(scores, key=lambda score: score.logprob)
    print(f"{best.text} with probability {math.exp(best.logprob):.2f}")

    questions = llm.cache_info["evaluated"]
    print(f"{questions} tokens of the question, {llm.metrics['evaluated']} in all")

    # A label of one token is read from the logits behind the prefix: nothing more is evaluated.
    greeting = [{"role": "user", "content": "Hello!"}]
    for score in llm.score(greeting, ["Hello", "Good", "No"]):
        print(f"{score.text!r}: {score.logprob:.2f} in {len(score)} token(s)")

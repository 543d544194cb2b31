"""A conversation: the messages go in, the reply comes out, and is appended for the next turn."""

from llama_py import Llama, demo_model_path

with Llama(demo_model_path()) as llm:
    messages = []
    for text in ("My name is Alice.", "What is 2 + 3?", "What is my name?"):
        messages.append({"role": "user", "content": text})
        response = llm.create_chat_completion(messages, temperature=0)
        message = response["choices"][0]["message"]
        messages.append(message)
        print(f"> {text}\n{message['content']}")

        # From the second turn on, only the new message is evaluated.
        usage = response["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        print(f"  [{cached} of {usage['prompt_tokens']} prompt tokens were in memory]")

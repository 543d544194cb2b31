"""A reply piece by piece, with the numbers of tokens and the speed at the end."""

from llama_py import Llama, demo_model_path

with Llama(demo_model_path()) as llm:
    chunks = llm.create_chat_completion(
        [{"role": "user", "content": "Count to 10."}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in chunks:
        for choice in chunk["choices"]:
            print(choice["delta"].get("content", ""), end="", flush=True)
            if choice["finish_reason"]:
                print(f"\n[{choice['finish_reason']}]")
        if chunk["usage"]:
            print(f"[{chunk['usage']['completion_tokens']} tokens]")
        if "timings" in chunk:
            print(f"[{chunk['timings']['predicted_per_second']:.0f} tokens per second]")

    # Closing a stream cancels it: nothing goes on in the background.
    stream = llm.create_completion("Once upon a time", max_tokens=1000, stream=True)
    print(next(stream)["object"])
    stream.close()

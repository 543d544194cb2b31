"""Replies in asyncio: the event loop stays free, and the calls share their batches."""

import asyncio

from llama_py import Llama, demo_model_path


async def ask(llm: Llama, text: str) -> str:
    """One call. It runs in a thread; the model computes all that are in flight together."""
    messages = [{"role": "user", "content": text}]
    response = await asyncio.to_thread(llm.create_chat_completion, messages, temperature=0)
    return response["choices"][0]["message"]["content"]


async def main() -> None:
    """Ask three things at once, while something else goes on."""
    with Llama(demo_model_path()) as llm:
        questions = ("Hello!", "What is 2 + 3?", "Count to 5.")
        tasks = [asyncio.create_task(ask(llm, text)) for text in questions]
        ticks = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.001)
            ticks += 1
        for text, task in zip(questions, tasks, strict=True):
            print(f"{text} -> {task.result()}")
        print("the loop was free:", ticks > 0)


asyncio.run(main())

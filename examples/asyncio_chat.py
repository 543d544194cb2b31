"""Replies in asyncio: the event loop stays free, and the calls share their batches."""

import asyncio

from llama_py import AsyncLlama, demo_model_path


async def ask(llm: AsyncLlama, text: str) -> str:
    """One call. All that are in flight are computed together."""
    response = await llm.create_chat_completion([{"role": "user", "content": text}], temperature=0)
    return response["choices"][0]["message"]["content"]


async def main() -> None:
    """Ask three things at once, while something else goes on; then read a stream."""
    async with AsyncLlama(demo_model_path()) as llm:
        questions = ("Hello!", "What is 2 + 3?", "Count to 5.")
        tasks = [asyncio.create_task(ask(llm, text)) for text in questions]
        ticks = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.001)
            ticks += 1
        for text, task in zip(questions, tasks, strict=True):
            print(f"{text} -> {task.result()}")
        print("the loop was free:", ticks > 0)

        messages = [{"role": "user", "content": "Count to 3."}]
        async for chunk in await llm.create_chat_completion(messages, stream=True, temperature=0):
            print(chunk["choices"][0]["delta"].get("content") or "", end="")
        print()


asyncio.run(main())

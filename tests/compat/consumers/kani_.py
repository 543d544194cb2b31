# requires: kani[cpp]==1.10.0 torch==2.13.0
"""kani's engine: a chat of two rounds, and a stream."""

import asyncio
import sys

from kani import Kani, PromptPipeline
from kani.engines.llamacpp import LlamaCppEngine

pipeline = PromptPipeline().conversation_fmt(
    user_prefix="<|im_start|>user\n",
    user_suffix="<|im_end|>\n",
    assistant_prefix="<|im_start|>assistant\n",
    assistant_suffix="<|im_end|>\n",
    generation_suffix="<|im_start|>assistant\n",
)
engine = LlamaCppEngine(
    model_path=sys.argv[1],
    max_context_size=512,
    prompt_pipeline=pipeline,
    model_load_kwargs={"verbose": False},
    temperature=0.0,
)


async def main() -> None:
    ai = Kani(engine)
    text = await ai.chat_round_str("What is 2 + 3?")
    assert text == "2 + 3 = 5.", text
    second = await ai.chat_round_str("What is 4 + 3?")
    assert len(ai.chat_history) == 4
    streamed = [each async for each in Kani(engine).chat_round_stream("What is 2 + 3?")]
    assert "".join(streamed) == text, streamed
    assert len(streamed) > 2, streamed
    print(text, second, len(streamed))
    await engine.close()


asyncio.run(main())

# requires: autogen-ext==0.7.5 autogen-core autogen-agentchat
"""AutoGen's client, with messages and a tool."""

import asyncio
import sys

from autogen_core.models import UserMessage
from autogen_ext.models.llama_cpp import LlamaCppChatCompletionClient


async def main() -> None:
    client = LlamaCppChatCompletionClient(model_path=sys.argv[1], verbose=False, n_ctx=2048)
    messages = [UserMessage(content="What is 2 + 3?", source="user")]
    found = await client.create(messages, extra_create_args={"temperature": 0.0})
    assert found.content == "2 + 3 = 5.", found
    print(found.content, client.count_tokens(messages))
    await client.close()


asyncio.run(main())

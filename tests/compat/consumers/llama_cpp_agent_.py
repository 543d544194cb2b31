# requires: llama-cpp-agent==0.2.35
"""An agent with a provider for llama_cpp.Llama."""

import sys

from llama_cpp import Llama
from llama_cpp_agent import LlamaCppAgent, MessagesFormatterType
from llama_cpp_agent.providers import LlamaCppPythonProvider

llm = Llama(sys.argv[1], verbose=False, n_ctx=2048)
provider = LlamaCppPythonProvider(llm)
agent = LlamaCppAgent(
    provider,
    system_prompt="You are a helpful assistant.",
    predefined_messages_formatter_type=MessagesFormatterType.CHATML,
)
settings = provider.get_provider_default_settings()
settings.temperature = 0.0
settings.max_tokens = 32
text = agent.get_chat_response("What is 2 + 3?", llm_sampling_settings=settings)
assert "5" in text, text
print(text)

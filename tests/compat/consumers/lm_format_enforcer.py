# requires: lm-format-enforcer==0.11.3
"""JSON by logits processors that mask tokens."""

import json
import sys

from llama_cpp import Llama, LogitsProcessorList
from lmformatenforcer import JsonSchemaParser
from lmformatenforcer.integrations.llamacpp import (
    build_llamacpp_logits_processor,
    build_token_enforcer_tokenizer_data,
)

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
}
llm = Llama(sys.argv[1], verbose=False)
data = build_token_enforcer_tokenizer_data(llm)
processor = build_llamacpp_logits_processor(data, JsonSchemaParser(SCHEMA))
found = llm(
    "2 + 3 = ",
    logits_processor=LogitsProcessorList([processor]),
    max_tokens=40,
    temperature=0,
)
text = found["choices"][0]["text"]
assert isinstance(json.loads(text)["answer"], int), text
print(text)

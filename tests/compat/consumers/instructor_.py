# requires: instructor
"""Pydantic objects by a patched ``create_chat_completion_openai_v1``."""

import sys

import instructor
from llama_cpp import Llama
from pydantic import BaseModel


class Answer(BaseModel):
    number: int


llm = Llama(sys.argv[1], verbose=False, n_ctx=2048)
create = instructor.patch(
    create=llm.create_chat_completion_openai_v1, mode=instructor.Mode.JSON_SCHEMA
)
found = create(
    messages=[{"role": "user", "content": "What is 2 + 3?"}], response_model=Answer, temperature=0
)
assert isinstance(found.number, int)
print(found)

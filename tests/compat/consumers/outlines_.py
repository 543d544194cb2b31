# requires: outlines[llamacpp]==1.3.3
"""Regular expressions, choices and JSON by masks of the vocabulary."""

import sys
from typing import Literal

import outlines
from llama_cpp import Llama
from outlines.types import Regex
from pydantic import BaseModel


class Answer(BaseModel):
    number: int


model = outlines.from_llamacpp(Llama(sys.argv[1], verbose=False, n_ctx=512))
digits = model("2 + 3 = ", Regex(r"[0-9]{2}"), max_tokens=8)
assert len(digits) == 2, digits
assert digits.isdigit(), digits
choice = model("Is 2 + 3 five? ", Literal["yes", "no"], max_tokens=8)
assert choice in ("yes", "no"), choice
text = model("2 + 3 = ", Answer, max_tokens=60, temperature=0)
assert isinstance(Answer.model_validate_json(text).number, int), text
assert "".join(model.stream("2 + 3 = ", Regex("[0-9]"), max_tokens=4)).isdigit()
print(digits, choice, text)

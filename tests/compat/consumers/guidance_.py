# requires: guidance llguidance
"""A program that decodes on the context by hand, with grammars of llguidance."""

import sys

from guidance import gen, models, select

lm = models.LlamaCpp(sys.argv[1], echo=False, n_ctx=512, verbose=False)
lm += (
    "2 + 3 = " + gen("digit", regex="[0-9]") + ". That is " + select(["right", "wrong"], name="is")
)
assert lm["digit"].isdigit(), lm["digit"]
assert lm["is"] in ("right", "wrong")
print(lm["digit"], lm["is"])

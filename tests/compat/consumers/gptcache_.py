# requires: gptcache==0.1.44
"""GPTCache's subclass of ``llama_cpp.Llama``: the second time, the text is the cache's."""

import sys

from gptcache import Cache
from gptcache.adapter.llama_cpp import Llama
from gptcache.processor.pre import get_prompt

cache = Cache()
cache.init(pre_embedding_func=get_prompt)
llm = Llama(sys.argv[1], n_ctx=512, verbose=False)
first = llm(prompt="2 + 3 =", max_tokens=4, temperature=0.0, cache_obj=cache)
again = llm(prompt="2 + 3 =", max_tokens=4, temperature=0.0, cache_obj=cache)
assert "gptcache" not in first
assert again["gptcache"]
assert first["choices"][0]["text"] == again["choices"][0]["text"] != ""
parts = list(llm(prompt="The sky", max_tokens=4, temperature=0.0, stream=True, cache_obj=cache))
assert len(parts) > 2, parts
kept = llm(prompt="The sky", max_tokens=4, temperature=0.0, cache_obj=cache)
assert kept["choices"][0]["text"] == "".join(each["choices"][0]["text"] for each in parts)
print(repr(first["choices"][0]["text"]), repr(kept["choices"][0]["text"]))

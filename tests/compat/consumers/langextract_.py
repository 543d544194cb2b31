# requires: langextract-llamacpp==0.1.3
"""LangExtract's provider, found by the name of its model."""

import sys

from langextract import factory

config = factory.ModelConfig(
    model_id=f"file:{sys.argv[1]}",
    provider="LlamaCppLanguageModel",
    provider_kwargs={"n_ctx": 512, "completion_kwargs": {"temperature": 0.0, "max_tokens": 32}},
)
model = factory.create_model(config)
found = [each[0].output for each in model.infer(["What is 2 + 3?", "What is 4 + 3?"])]
assert found[0] == "2 + 3 = 5.", found
print(found)

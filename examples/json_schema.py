"""Replies that fit a JSON schema, whatever the model would have said."""

import json

from llama_py import Llama, LlamaGrammar, demo_model_path

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

with Llama(demo_model_path()) as llm:
    response = llm.create_chat_completion(
        [{"role": "user", "content": "Give me a JSON object with name Alice and age 30."}],
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}},
        temperature=0,
    )
    person = json.loads(response["choices"][0]["message"]["content"])
    print(sorted(person), type(person["age"]).__name__)

    # The same for a plain completion, and for any other language: a grammar.
    yes_or_no = LlamaGrammar.from_string('root ::= "yes" | "no"')
    print(llm.create_completion("Is it late?", grammar=yes_or_no)["choices"][0]["text"])

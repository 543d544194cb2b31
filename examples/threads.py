"""One model, many threads: the calls that are in flight together are computed together."""

from concurrent.futures import ThreadPoolExecutor

from llama_py import Llama, demo_model_path

with Llama(demo_model_path(), n_seq_max=4) as llm:

    def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"What is {number} + 1?"}]
        response = llm.create_chat_completion(messages, temperature=0)
        return response["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(8) as pool:
        for number, answer in enumerate(pool.map(ask, range(8))):
            print(f"{number}: {answer}")

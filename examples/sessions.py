"""Two people talk with one model: each conversation keeps its own place in memory."""

from llama_py import ChatSession, Llama, demo_model_path

with Llama(demo_model_path()) as llm:
    alice = ChatSession(llm, temperature=0)
    bob = ChatSession(llm, temperature=0)
    print(alice.send("My name is Alice."))
    print(bob.send("My name is Bob."))
    print("Alice:", alice.send("What is my name?"))
    print("Bob:", bob.send("What is my name?"))

    # A branch shares what it has in common with its origin, and goes its own way.
    branch = alice.fork()
    branch.send("Count to 3.")
    print(len(alice.messages), len(branch.messages))

    # The plain call knows sessions by the request's "user".
    messages = [{"role": "user", "content": "Hello"}]
    llm.create_chat_completion(messages, user="carol", temperature=0)

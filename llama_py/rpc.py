"""Devices of other machines.

>>> from llama_py import Llama, rpc
>>> rpc.add_server("192.168.1.2:50052")
>>> llm = Llama("model.gguf")  # its layers are there, as far as there is memory

The other machine runs ``llama-py rpc-server``. See docs/rpc.md.
"""

from llama_py.core.rpc import RpcServer, add_server, servers, set_patience

__all__ = ["RpcServer", "add_server", "servers", "set_patience"]

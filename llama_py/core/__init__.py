"""One small class for each C handle. No package above this one imports ``ctypes``.

A C object is freed once: when its ``Handle`` is gone and its last child is. So ``del`` frees at
once, whatever the order, and ``close()`` closes children first.

* ``model``, ``vocab``, ``lora``, ``context``: the handles. A context owns the threads that it
  computes with (``threads``), so that any thread may call it, and can be stopped in the middle of a
  batch (``abort``). ``batch`` lets the C struct point into numpy arrays; ``steps`` holds the
  results of several steps that C made in one call.
* ``sampling/``: one row of logits to one token. llama.cpp's chain gets the k likeliest candidates
  in place of the whole vocabulary.
* ``grammar/``: llama.cpp's grammar sampler, and the checks of what it is given.
* ``chat``: templates and parsers of replies, made by the C++ library in ``native/shim``.
* ``mtp``: a model's next-token heads, computed in a second context on the same weights.
* ``native_load``: loads in another thread, so that Ctrl-C can stop it; ``model`` identifies the
  weights meanwhile.
* ``weights``: whether a file's weights are finite, of any type.
* ``device_memory``: what a model takes on each device, before it is loaded and after;
  ``device_report``: which devices are used, and why others are not.
* ``host/``: the machine: cores, memory, GPUs, folders, and contexts that take turns on the cores.
* ``logs``: llama.cpp's log in Python's ``logging``.
"""

# Two cores of an Intel Xeon (AVX-512, AMX), GCC 12, 135M parameters in Q8_0, heads of 64, milliseconds for
# a prompt of 500 tokens, tensors at multiples of 32 / 64 bytes: flash attention 320 to 460, depending on
# n_ubatch and n_seq_max / 360; without it 480 to 640 / 490 to 515.
option(LLAMA_PY_TENSOR_ALIGNMENT
    "Align tensors in the CPU's buffers to cache lines; off when ggml does, or it does not compile" ON)

llama_py_header_rule(LLAMA_PY_TENSOR_ALIGNMENT tensor_alignment.h
    FOR ${gcc_or_clang}
    SOURCES
        ggml/src/ggml-backend.cpp
        ggml/src/ggml-cpu/amx/amx.cpp
        ggml/src/ggml-cpu/repack.cpp)
if (LLAMA_PY_TENSOR_ALIGNMENT AND gcc_or_clang)
    llama_py_include_first(mapped_files.h llama src/llama-model-loader.cpp)
endif()

# Two cores of an Intel Xeon (AVX-512, AMX), GCC 12, 135M parameters in Q8_0, seven pairs of processes of
# llama-bench, huge pages by small ones: replies 1.025 (with flash attention 1.027), prompts of 512 tokens 1.015.
#
# Cells are cleared when a context is made. Two cores of an AMD EPYC under Firecracker whose memory was given back to the
# host: 47 MB of cells take 110 ms in huge pages, and about 20 in small ones (cold_pages.h).
option(LLAMA_PY_HUGE_PAGES
    "Ask Linux for transparent huge pages for weights, cells and graphs in RAM" ON)

llama_py_header_rule(LLAMA_PY_HUGE_PAGES huge_pages.h
    FOR ${gcc_or_clang_on_linux}
    SOURCES ggml/src/ggml.c)
if (LLAMA_PY_HUGE_PAGES AND gcc_or_clang_on_linux)
    llama_py_include_first(cold_pages.h ggml-base ggml/src/ggml-backend.cpp)
endif()

# Prefetches in llamafile's kernels. For two or more columns (streams that generate together) they read
# four rows of weights side by side, and short rows, of 612 bytes in a model of 135M parameters, are over
# before the processor's own prefetcher has noticed them.
#
# Measured on two cores of an AMD EPYC with AVX2, GCC 12, 135M parameters in Q8_0, tokens per second of 1,
# 2, 4, 8 and 16 streams, without prefetches 126, 93, 126, 222, 385 / with them 127, 116, 171, 252, 390.
# With AVX-512 there is nothing to be had: 74, 114, 173, 244, 312 / 75, 114, 176, 244, 313 on two cores of
# an Intel Xeon without its AMX; with it, prompts without flash attention are 1 to 2 % slower. So this is
# for CPUs without AVX-512.
#
# It can go when the kernels prefetch themselves.
option(LLAMA_PY_LLAMAFILE_PREFETCH
    "Compile llamafile's kernels with prefetches, without which few streams are slow on CPUs with AVX2" ON)

function(llama_py_llamafile_prefetch)
    set(source "${LLAMA_PY_SOURCE_DIR}/ggml/src/ggml-cpu/llamafile/sgemm.cpp")
    if (NOT LLAMA_PY_LLAMAFILE_PREFETCH)
        llama_py_note_rule(LLAMA_PY_LLAMAFILE_PREFETCH "off")
        return()
    endif()
    llama_py_compiles_for(LLAMA_PY_HAS_AVX2_ONLY "defined(__AVX2__) && !defined(__AVX512F__)")
    if (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND LLAMA_PY_HAS_AVX2_ONLY AND EXISTS "${source}")
        set_property(SOURCE "${source}" TARGET_DIRECTORY ggml-base
            APPEND PROPERTY COMPILE_OPTIONS -fprefetch-loop-arrays)
        llama_py_note_rule(LLAMA_PY_LLAMAFILE_PREFETCH "applied")
    else()
        llama_py_note_rule(LLAMA_PY_LLAMAFILE_PREFETCH "without effect")
    endif()
endfunction()

llama_py_llamafile_prefetch()

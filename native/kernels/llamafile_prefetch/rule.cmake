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
    set(condition "defined(__AVX2__) && !defined(__AVX512F__)")
    llama_py_reaches(LLAMA_PY_HAS_AVX2_ONLY "${condition}")
    if (NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR NOT LLAMA_PY_HAS_AVX2_ONLY OR NOT gcc_or_clang_for_x86
            OR NOT EXISTS "${source}")
        llama_py_note_rule(LLAMA_PY_LLAMAFILE_PREFETCH "without effect")
        return()
    endif()
    set(option -fprefetch-loop-arrays)
    if (GGML_CPU_ALL_VARIANTS)
        # The file belongs to every variant, and the option to some of them.
        llama_py_variants_with(variants "${condition}")
        list(JOIN variants "$<SEMICOLON>" variants)
        set(option "$<$<IN_LIST:$<TARGET_PROPERTY:NAME>,${variants}>:${option}>")
    endif()
    set_property(SOURCE "${source}" TARGET_DIRECTORY ggml-base APPEND PROPERTY COMPILE_OPTIONS "${option}")
    set_property(GLOBAL APPEND PROPERTY LLAMA_PY_CONDITIONS "LLAMA_PY_LLAMAFILE_PREFETCH|${condition}")
    llama_py_note_rule(LLAMA_PY_LLAMAFILE_PREFETCH "applied")
endfunction()

llama_py_llamafile_prefetch()

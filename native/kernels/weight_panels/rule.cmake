# Weights of four to six bits in panels of sixteen rows, or eight (panels.h).
option(LLAMA_PY_WEIGHT_PANELS
    "Arrange quantized weights for many rows at once; needs AVX2, and is at its best with VNNI" ON)

llama_py_header_rule(LLAMA_PY_WEIGHT_PANELS weight_panels.h
    FOR ${gcc_or_clang_for_x86}
    INSTRUCTIONS "defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)"
    SOURCES ggml/src/ggml-cpu/ggml-cpu.cpp)
# Whether they are in huge pages is that rule's option.
llama_py_rule(huge_pages)
if (LLAMA_PY_WEIGHT_PANELS AND gcc_or_clang_for_x86)
    foreach (backend IN LISTS GGML_AVAILABLE_BACKENDS)
        if (TARGET ${backend} AND backend MATCHES "^ggml-cpu")
            target_sources(${backend} PRIVATE "${CMAKE_CURRENT_LIST_DIR}/weight_panels.cpp")
            if (NOT LLAMA_PY_HUGE_PAGES)
                target_compile_definitions(${backend} PRIVATE LLAMA_PY_SMALL_PAGES)
            endif()
        endif()
    endforeach()
endif()

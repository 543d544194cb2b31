# Weights of four to six bits in panels of sixteen rows, or eight (panels.h).
option(LLAMA_PY_WEIGHT_PANELS
    "Arrange quantized weights for many rows at once; needs AVX2, and is at its best with VNNI" ON)

llama_py_header_rule(LLAMA_PY_WEIGHT_PANELS weight_panels.h
    FOR ${gcc_or_clang_for_x86}
    INSTRUCTIONS "defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)"
    SOURCES ggml/src/ggml-cpu/ggml-cpu.cpp)
# Whether they are in huge pages is that rule's option.
llama_py_rule(huge_pages)

# The file takes minutes for each kind of CPU, and uses few of the instructions by which variants differ: one whose
# code would be the same, and whose CPU has no others, compiles it for the rest.
set(llama_py_panels_text "")
foreach (macro IN ITEMS AVX2 FMA F16C AVX512F AVX512BW AVX512DQ AVX512VNNI AVXVNNI)
    string(APPEND llama_py_panels_text "#ifdef __${macro}__\nLLAMA_PY_${macro}\n#endif\n")
endforeach()

function(llama_py_compile_panels backend)
    get_target_property(options ${backend} COMPILE_OPTIONS)
    llama_py_preprocessed(used ${backend} "${llama_py_panels_text}")
    set(key "llama_py_panels_${used}")
    get_property(first GLOBAL PROPERTY "${key}")
    set(more "${options}")
    if (first)
        get_target_property(fewer ${first} COMPILE_OPTIONS)
        set(more "${fewer}")
        list(REMOVE_ITEM more ${options})
    endif()
    if (first AND NOT more)
        target_sources(${backend} PRIVATE "$<FILTER:$<TARGET_OBJECTS:${first}>,INCLUDE,weight_panels\\.cpp>")
    else()
        target_sources(${backend} PRIVATE "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/weight_panels.cpp")
        set_property(GLOBAL PROPERTY "${key}" ${backend})
    endif()
endfunction()

if (LLAMA_PY_WEIGHT_PANELS AND gcc_or_clang_for_x86)
    foreach (backend IN LISTS GGML_AVAILABLE_BACKENDS)
        if (TARGET ${backend} AND backend MATCHES "^ggml-cpu")
            llama_py_compile_panels(${backend})
            if (NOT LLAMA_PY_HUGE_PAGES)
                target_compile_definitions(${backend} PRIVATE LLAMA_PY_SMALL_PAGES)
            endif()
        endif()
    endforeach()
endif()

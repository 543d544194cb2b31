# Weights that kernels lay out anew are copied out of the file, which llama.cpp maps with all of its pages: a model would take
# its size twice, while it is loaded and, between the first and the last tensor that is used in place, for good. Pages are
# given back as soon as their tensor was copied; the system reads them again from its cache where they are needed after all.
# Those of other tensors stay: to give back a whole file cost the first token what it takes to map them again.
option(LLAMA_PY_COPIED_PAGES
    "Give back the pages of a mapped file whose weights were copied; off when it does not compile" ON)

llama_py_rule(tensor_alignment)  # which has a header included into the same file

function(llama_py_give_back_pages)
    if (NOT LLAMA_PY_COPIED_PAGES)
        llama_py_note_rule(LLAMA_PY_COPIED_PAGES "off")
        return()
    endif()
    set(folder "${LLAMA_PY_SOURCE_DIR}/src")
    llama_py_source_text(text "${folder}" llama-model-loader.cpp)
    llama_py_exchange(text LLAMA_PY_COPIED_PAGES
        "#include \"llama-model-loader.h\"\n"
        "#include \"llama-model-loader.h\"\n#include \"${CMAKE_CURRENT_FUNCTION_LIST_DIR}/copied_pages.h\"\n")
    llama_py_exchange(text LLAMA_PY_COPIED_PAGES
        "                ggml_backend_tensor_set(cur, data, 0, n_size);\n"
        "                ggml_backend_tensor_set(cur, data, 0, n_size);\n                llama_py_give_back(data, n_size);\n")
    llama_py_compile_copy(llama "${folder}" llama-model-loader.cpp "${text}")
    llama_py_note_rule(LLAMA_PY_COPIED_PAGES "applied")
endfunction()

llama_py_give_back_pages()

# Corrections that no header can make (see IncludedFirst.cmake): a file of llama.cpp is copied into the build
# folder with some of its lines exchanged, and compiled from there. The source itself stays as it is. Lines that
# are not found, or found more than once, are another llama.cpp: the build says so and stops, because a fault
# that was known comes back in silence else.
option(LLAMA_PY_WINDOW_CELLS
    "Keep the cells of a sliding window while several micro-batches are computed; off when llama.cpp does" ON)

# Exchanges a text that occurs once.
function(llama_py_exchange variable rule old new)
    string(FIND "${${variable}}" "${old}" first)
    string(FIND "${${variable}}" "${old}" last REVERSE)
    if (first EQUAL -1 OR NOT first EQUAL last)
        message(FATAL_ERROR "${rule}: this llama.cpp does not have the lines that are to be corrected; "
            "see docs/upstream-notes.md, and turn the rule off (-D${rule}=OFF) if they were corrected there")
    endif()
    string(REPLACE "${old}" "${new}" changed "${${variable}}")
    set(${variable} "${changed}" PARENT_SCOPE)
endfunction()

# Compiles a changed copy in place of a source file of a target, which names it relative to its folder.
function(llama_py_compile_copy target folder name text)
    set(copy "${CMAKE_CURRENT_BINARY_DIR}/corrected/${name}")
    set(present "")
    if (EXISTS "${copy}")
        file(READ "${copy}" present)
    endif()
    if (NOT present STREQUAL text)  # else it would be compiled again each time
        file(WRITE "${copy}" "${text}")
    endif()
    get_target_property(sources ${target} SOURCES)
    list(REMOVE_ITEM sources "${name}")
    set_target_properties(${target} PROPERTIES SOURCES "${sources}")
    target_sources(${target} PRIVATE "${copy}")
    set_source_files_properties("${copy}" TARGET_DIRECTORY ${target}
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${folder}/${name}")
endfunction()

# Before a batch is computed, llama.cpp places all of its micro-batches on trial and takes that back
# (llama_kv_cache::prepare). What it does not take back: cells of a sliding window that were removed because
# newer ones of the same sequence were overwritten. The first micro-batches are then computed without cells that
# they attend to, and so are wrong. A trial needs to remove nothing.
function(llama_py_window_cells)
    if (NOT LLAMA_PY_WINDOW_CELLS)
        llama_py_note_rule(LLAMA_PY_WINDOW_CELLS "off")
        return()
    endif()
    set(folder "${LLAMA_PY_SOURCE_DIR}/src")
    file(READ "${folder}/llama-kv-cache.cpp" text)
    llama_py_exchange(text LLAMA_PY_WINDOW_CELLS
        "llama_kv_cache::slot_info_vec_t llama_kv_cache::prepare("
        "static thread_local bool llama_py_on_trial = false;\n\nllama_kv_cache::slot_info_vec_t llama_kv_cache::prepare(")
    llama_py_exchange(text LLAMA_PY_WINDOW_CELLS
        "        apply_ubatch(sinfo_new, ubatch);"
        "        llama_py_on_trial = true;\n        apply_ubatch(sinfo_new, ubatch);\n        llama_py_on_trial = false;")
    llama_py_exchange(text LLAMA_PY_WINDOW_CELLS
        "        if (seq_pos_max_rm[s] == -1) {"
        "        if (llama_py_on_trial || seq_pos_max_rm[s] == -1) {")
    llama_py_compile_copy(llama "${folder}" llama-kv-cache.cpp "${text}")
    llama_py_note_rule(LLAMA_PY_WINDOW_CELLS "applied")
endfunction()

llama_py_window_cells()

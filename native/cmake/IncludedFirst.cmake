# Corrections of single files of llama.cpp, whose source is not ours to change: headers that the
# compiler includes before anything else.

# Call it with the target whose directory the files belong to. The CPU backend and all variants of it
# are targets of one directory: a file is changed in each of them. The header is in the folder of the rule.
function(llama_py_include_first header target)
    foreach (source IN LISTS ARGN)
        if (EXISTS "${LLAMA_PY_SOURCE_DIR}/${source}")
            set_property(SOURCE "${LLAMA_PY_SOURCE_DIR}/${source}" TARGET_DIRECTORY ${target}
                APPEND PROPERTY COMPILE_OPTIONS -include "${CMAKE_CURRENT_LIST_DIR}/${header}")
        endif()
    endforeach()
endfunction()

# The same as a rule, for files of ggml:
#
#     llama_py_header_rule(OPTION header FOR <bool> [INSTRUCTIONS <condition>] SOURCES <file>...)
#
# It has no effect where it is not FOR this compiler, system and processor, where none of the files is there, and
# where the CPU lacks instructions: the condition of the preprocessor that the header itself asks.
function(llama_py_header_rule rule header)
    cmake_parse_arguments(PARSE_ARGV 2 its "" "FOR;INSTRUCTIONS" "SOURCES")
    set(sources "")
    foreach (source IN LISTS its_SOURCES)
        if (EXISTS "${LLAMA_PY_SOURCE_DIR}/${source}")
            list(APPEND sources "${source}")
        endif()
    endforeach()
    if (NOT ${rule})
        llama_py_note_rule(${rule} "off")
        return()
    endif()
    set(reached OFF)
    if (its_FOR AND sources)
        llama_py_include_first("${header}" ggml-base ${sources})
        llama_py_reaches(reached "${its_INSTRUCTIONS}")
        set_property(GLOBAL APPEND PROPERTY LLAMA_PY_CONDITIONS "${rule}|${its_INSTRUCTIONS}")
    endif()
    if (reached)
        llama_py_note_rule(${rule} "applied")
    else()
        llama_py_note_rule(${rule} "without effect")
    endif()
endfunction()

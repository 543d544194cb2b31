# Corrections that no header can make (see IncludedFirst.cmake): a file of llama.cpp is copied into the build
# folder with some of its lines exchanged, and compiled from there. The source itself stays as it is. Lines that
# are not found, or found more than once, are another llama.cpp: the build says so and stops, because a fault
# that was known comes back in silence else.

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

# The text of a source file, with what rules before this one have exchanged in it.
function(llama_py_source_text variable folder name)
    get_property(text GLOBAL PROPERTY "llama_py_corrected_${folder}/${name}")
    if (NOT text)
        file(READ "${folder}/${name}" text)
    endif()
    set(${variable} "${text}" PARENT_SCOPE)
endfunction()

# Compiles a changed copy in place of a source file of a target, which names it relative to its folder.
function(llama_py_compile_copy target folder name text)
    get_property(corrected GLOBAL PROPERTY LLAMA_PY_CORRECTED)
    set_property(GLOBAL PROPERTY "llama_py_corrected_${folder}/${name}" "${text}")
    if ("${folder}/${name}" IN_LIST corrected)  # by another rule: that one exchanged the source
        return()
    endif()
    set_property(GLOBAL APPEND PROPERTY LLAMA_PY_CORRECTED "${folder}/${name}")
    set(copy "${CMAKE_CURRENT_BINARY_DIR}/corrected/${name}")
    get_target_property(sources ${target} SOURCES)
    list(REMOVE_ITEM sources "${name}")
    set_target_properties(${target} PROPERTIES SOURCES "${sources}")
    target_sources(${target} PRIVATE "${copy}")
    set_source_files_properties("${copy}" TARGET_DIRECTORY ${target}
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    # What is included first into the source (IncludedFirst.cmake) by rules before this one.
    get_source_file_property(options "${folder}/${name}" TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
    if (options)
        set_source_files_properties("${copy}" TARGET_DIRECTORY ${target}
            PROPERTIES COMPILE_OPTIONS "${options}")
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${folder}/${name}")
endfunction()

# Writes the copies, when all rules have changed them.
function(llama_py_write_copies)
    get_property(corrected GLOBAL PROPERTY LLAMA_PY_CORRECTED)
    foreach (source IN LISTS corrected)
        get_property(text GLOBAL PROPERTY "llama_py_corrected_${source}")
        get_filename_component(name "${source}" NAME)
        set(copy "${CMAKE_CURRENT_BINARY_DIR}/corrected/${name}")
        set(present "")
        if (EXISTS "${copy}")
            file(READ "${copy}" present)
        endif()
        if (NOT present STREQUAL text)  # else it would be compiled again each time
            file(WRITE "${copy}" "${text}")
        endif()
    endforeach()
endfunction()

# Where llama.cpp's source is: vendor/resolve.py finds or fetches it.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)

# Sets LLAMA_PY_SOURCE_DIR, LLAMA_PY_SOURCE_COMMIT and LLAMA_PY_SOURCE_ORIGIN.
# Arguments are passed on to the script.
function(llama_py_resolve_source)
    set(script "${CMAKE_CURRENT_SOURCE_DIR}/vendor/resolve.py")
    # The script's account of what it does goes straight to the build log.
    execute_process(
        COMMAND "${Python_EXECUTABLE}" "${script}" --json ${ARGN}
        OUTPUT_VARIABLE answer
        RESULT_VARIABLE status)
    if (NOT status EQUAL 0)
        message(FATAL_ERROR "llama.cpp's source is missing; the reasons are above.")
    endif()
    foreach (key path commit origin)
        string(JSON value GET "${answer}" ${key})
        set(_${key} "${value}")
    endforeach()
    set(LLAMA_PY_SOURCE_DIR "${_path}" PARENT_SCOPE)
    set(LLAMA_PY_SOURCE_COMMIT "${_commit}" PARENT_SCOPE)
    set(LLAMA_PY_SOURCE_ORIGIN "${_origin}" PARENT_SCOPE)
    message(STATUS "llama.cpp ${_commit} from ${_origin}: ${_path}")
    # Moving the pin reconfigures.
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
        "${script}" "${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama.cpp.toml")
endfunction()

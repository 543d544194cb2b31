# What goes into llama_py/lib/: one file per library, relocatable, and a description of the build.

# A wheel is installed from; an editable installation and a build by hand put the libraries into
# the source tree, where the package is imported from.
if (SKBUILD_STATE MATCHES "wheel")
    set(destination "llama_py/lib")
else()
    set(destination "${CMAKE_CURRENT_SOURCE_DIR}/llama_py/lib")
endif()

set(libraries ggml-base ggml llama mtmd llama_py_chat)
if (TARGET llama_py_rpc)
    list(APPEND libraries llama_py_rpc)
endif()
set(backends "")
foreach (backend IN LISTS GGML_AVAILABLE_BACKENDS)
    # The list is kept in the cache, and may name a backend of an earlier configuration.
    if (TARGET ${backend})
        list(APPEND backends ${backend})
    endif()
endforeach()

set(installed ${libraries} ${backends})
if (LLAMA_PY_PLUGIN)
    set(installed ${LLAMA_PY_PLUGIN})
    set(backends ${LLAMA_PY_PLUGIN})
    set(destination "${LLAMA_PY_PLUGIN_PACKAGE}/lib")
    if (NOT TARGET ${LLAMA_PY_PLUGIN} OR NOT SKBUILD_STATE MATCHES "wheel")
        message(FATAL_ERROR "LLAMA_PY_PLUGIN=${LLAMA_PY_PLUGIN}: no such backend is built, or this is not the build of "
            "its wheel: use 'python -m tools.plugin_wheel'.")
    endif()
endif()

add_custom_target(llama_py_native ALL DEPENDS ${installed} llama_py_abi_check)

# Also of libraries that are not installed: what a plug-in asks the linker for is called as in the package.
foreach (library IN LISTS libraries backends)
    # A wheel cannot hold the symbolic links of versioned libraries; it would hold three copies.
    # Headers are not installed either.
    foreach (property VERSION SOVERSION PUBLIC_HEADER PRIVATE_HEADER)
        set_property(TARGET ${library} PROPERTY ${property})
    endforeach()
endforeach()
foreach (library IN LISTS installed)
    install(TARGETS ${library}
        LIBRARY DESTINATION "${destination}" COMPONENT llama_py
        RUNTIME DESTINATION "${destination}" COMPONENT llama_py)
endforeach()

include(BuildInfo)
llama_py_write_build_info("${CMAKE_CURRENT_BINARY_DIR}/build_info.json")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/build_info.json"
    DESTINATION "${destination}" COMPONENT llama_py)

include(Licenses)

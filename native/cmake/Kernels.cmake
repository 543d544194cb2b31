# Every rule of native/kernels/ (see Rules.cmake), in the order of their names, but for those that say what they
# come behind.

# A rule, once; nothing where its folder is not there. A rule.cmake calls it with the name of a rule that it has to
# come behind. Variables that it sets are its own.
function(llama_py_rule name)
    set(file "${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/${name}/rule.cmake")
    get_property(done GLOBAL PROPERTY LLAMA_PY_RULES_INCLUDED)
    if (EXISTS "${file}" AND NOT name IN_LIST done)
        set_property(GLOBAL APPEND PROPERTY LLAMA_PY_RULES_INCLUDED ${name})
        include("${file}")
    endif()
endfunction()

file(GLOB rules CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/*/rule.cmake")
foreach (rule IN LISTS rules)
    get_filename_component(rule "${rule}" DIRECTORY)
    get_filename_component(rule "${rule}" NAME)
    llama_py_rule(${rule})
endforeach()
llama_py_write_copies()

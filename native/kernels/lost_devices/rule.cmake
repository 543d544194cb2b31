# Vulkan's backend with its exceptions caught where ggml calls it: upstream, a device that is lost, or that refuses
# memory while it computes, ends the process (UPSTREAM.md).
option(LLAMA_PY_LOST_DEVICES "A device that Vulkan loses fails what runs on it, and not the process" ON)

function(llama_py_lost_devices)
    set(folder "${LLAMA_PY_SOURCE_DIR}/ggml/src/ggml-vulkan")
    if (NOT LLAMA_PY_LOST_DEVICES)
        llama_py_note_rule(LLAMA_PY_LOST_DEVICES "off")
        return()
    elseif (NOT TARGET ggml-vulkan)
        llama_py_note_rule(LLAMA_PY_LOST_DEVICES "without effect")
        return()
    endif()
    llama_py_source_text(text "${folder}" ggml-vulkan.cpp)
    llama_py_exchange(text LLAMA_PY_LOST_DEVICES
        "static bool vk_instance_initialized = false;"
        "#include \"${CMAKE_CURRENT_FUNCTION_LIST_DIR}/lost_devices.h\"\nstatic bool vk_instance_initialized = false;")
    llama_py_exchange(text LLAMA_PY_LOST_DEVICES
        "ggml_backend_buffer_init(buft, ggml_backend_vk_buffer_interface,"
        "ggml_backend_buffer_init(buft, llama_py_catching(ggml_backend_vk_buffer_interface),")
    llama_py_exchange(text LLAMA_PY_LOST_DEVICES
        "(ggml_backend_vk_device_get_buffer_type(dev), ggml_backend_vk_buffer_interface,"
        "(ggml_backend_vk_device_get_buffer_type(dev), llama_py_catching(ggml_backend_vk_buffer_interface),")
    llama_py_exchange(text LLAMA_PY_LOST_DEVICES
        "/* .iface   = */ ggml_backend_vk_interface,"
        "/* .iface   = */ llama_py_catching(ggml_backend_vk_interface),")
    llama_py_exchange(text LLAMA_PY_LOST_DEVICES
        "/* .iface   = */ ggml_backend_vk_device_i,"
        "/* .iface   = */ llama_py_catching(ggml_backend_vk_device_i),")
    llama_py_exchange(text LLAMA_PY_LOST_DEVICES
        "/* .get_proc_address = */ NULL," "/* .get_proc_address = */ llama_py_function,")
    # Where a model or a context begins on a device.
    llama_py_exchange(text LLAMA_PY_LOST_DEVICES
        "    ctx->device = ggml_vk_get_device(idx);" "    ctx->device = llama_py_working_device(idx);")
    llama_py_exchange(text LLAMA_PY_LOST_DEVICES
        "    vk_device dev = ggml_vk_get_device(dev_num);" "    vk_device dev = llama_py_working_device(dev_num);")
    llama_py_compile_copy(ggml-vulkan "${folder}" ggml-vulkan.cpp "${text}")
    target_include_directories(ggml-vulkan PRIVATE "${folder}")
    llama_py_note_rule(LLAMA_PY_LOST_DEVICES "applied")
endfunction()

llama_py_lost_devices()

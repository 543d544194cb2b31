# llama.cpp's RPC backend, as a library of its own that is loaded when a server is added (core/rpc.py). It is built
# from corrected copies: upstream ends the process where a server cannot be reached, has died, or answers nonsense;
# waits for ever for one that is frozen; and serves one client at a time. The protocol stays as it is.
option(LLAMA_PY_RPC "Build the library for devices of other machines (RPC)" ON)

function(llama_py_rpc_servers)
    set(folder "${LLAMA_PY_SOURCE_DIR}/ggml/src/ggml-rpc")
    if (NOT LLAMA_PY_RPC)
        llama_py_note_rule(LLAMA_PY_RPC "off")
        return()
    endif()
    set(here "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
    set(into "${CMAKE_CURRENT_BINARY_DIR}/corrected/rpc")
    set(failed "return llama_py_lose(this, endpoint)")

    # The client: what failed is remembered, and answers with zeros from then on.
    file(READ "${folder}/ggml-rpc.cpp" text)
    llama_py_exchange(text LLAMA_PY_RPC
        "#define RPC_STATUS_ASSERT(x) if (!(x)) GGML_ABORT(\"Remote RPC server crashed or returned malformed response\")"
        "#include \"${here}/lost_servers.h\"")
    llama_py_exchange(text LLAMA_PY_RPC
        "    RPC_STATUS_ASSERT(status);\n\n    if (response.major"
        "    if (!status) {\n        return false;\n    }\n\n    if (response.major")
    llama_py_exchange(text LLAMA_PY_RPC
        "    sock->update_caps(response.conn_caps);\n    return true;"
        "    sock->update_caps(response.conn_caps);\n    sock->watch(llama_py_patience(), response.padding == LLAMA_PY_ANSWERS_OTHERS);\n    return true;")
    llama_py_exchange(text LLAMA_PY_RPC
        "    void work();\n\n    ~rpc_dispatcher();\n"
        "    void work();\n\n    ~rpc_dispatcher();\n\n    std::atomic_bool lost = false;\n    std::atomic<llama_py_clock::rep> lost_at = 0;\n    std::string lost_endpoint;\n")
    llama_py_exchange(text LLAMA_PY_RPC
        "        GGML_ABORT(\"Failed to parse endpoint: %s\\n\", endpoint.c_str());" "        ${failed};")
    llama_py_exchange(text LLAMA_PY_RPC
        "        GGML_ABORT(\"RPC transport initialization failed\\n\");" "        ${failed};")
    llama_py_exchange(text LLAMA_PY_RPC
        "        GGML_ABORT(\"Failed to connect to %s\\n\", endpoint.c_str());" "        ${failed};")
    llama_py_exchange(text LLAMA_PY_RPC
        "        GGML_ABORT(\"RPC handshake failed for %s\\n\", endpoint.c_str());" "        ${failed};")
    # Whatever comes of it, the thread works: calls wait for their messages.
    llama_py_exchange(text LLAMA_PY_RPC
        "void rpc_dispatcher::start(const std::string & endpoint) {\n"
        "void rpc_dispatcher::start(const std::string & endpoint) {\n    lost_endpoint = endpoint;\n    llama_py_at_end work { [this] {\n        running = true;\n        thread = std::thread(rpc_dispatcher_trampoline, this);\n    } };\n")
    llama_py_exchange(text LLAMA_PY_RPC
        "    running = true;\n    thread = std::thread(rpc_dispatcher_trampoline, this);\n}\n" "}\n")
    llama_py_exchange(text LLAMA_PY_RPC
        "        if (msg_ptr->cmd != RPC_CMD_NONE) {\n            if (msg_ptr->output) {"
        "        if (lost) {\n            llama_py_answer_nothing(*msg_ptr);\n        } else if (msg_ptr->cmd != RPC_CMD_NONE) {\n            if (msg_ptr->output) {")
    llama_py_exchange(text LLAMA_PY_RPC
        "msg_ptr->output, msg_ptr->output_size);\n                RPC_STATUS_ASSERT(status);"
        "msg_ptr->output, msg_ptr->output_size);\n                if (!status) {\n                    llama_py_lose(this, lost_endpoint);\n                    llama_py_answer_nothing(*msg_ptr);\n                }")
    llama_py_exchange(text LLAMA_PY_RPC
        "msg_ptr->input_size);\n                RPC_STATUS_ASSERT(status);"
        "msg_ptr->input_size);\n                if (!status) {\n                    llama_py_lose(this, lost_endpoint);\n                }")
    llama_py_exchange(text LLAMA_PY_RPC
        "        if (auto dispatcher = it->second.lock()) {\n"
        "        if (auto dispatcher = it->second.lock(); dispatcher && (!dispatcher->lost || llama_py_lost_lately(endpoint, dispatcher->lost_at))) {\n")
    llama_py_exchange(text LLAMA_PY_RPC
        "    dispatcher->start(endpoint);\n"
        "    dispatcher->start(endpoint);\n    if (dispatcher->lost) {  // kept, so that nobody tries again at once\n        static auto & failed = *new std::unordered_map<std::string, std::shared_ptr<rpc_dispatcher>>();\n        failed[endpoint] = dispatcher;\n    }\n")
    llama_py_exchange(text LLAMA_PY_RPC
        "    rpc_ctx->dispatcher->graph_compute(rpc_ctx->device, cgraph);\n    return GGML_STATUS_SUCCESS;"
        "    if (rpc_ctx->dispatcher->lost) {\n        return GGML_STATUS_FAILED;\n    }\n    rpc_ctx->dispatcher->graph_compute(rpc_ctx->device, cgraph);\n    return GGML_STATUS_SUCCESS;")
    # Numbers that would end the process later.
    llama_py_exchange(text LLAMA_PY_RPC
        "    return response.alignment;" "    return llama_py_checked_alignment(response.alignment);")
    llama_py_exchange(text LLAMA_PY_RPC
        "    ctx->base_ptr = reinterpret_cast<void *>(response.base_ptr);"
        "    ctx->base_ptr = llama_py_checked_base(ctx->dispatcher.get(), buffer, response.base_ptr);")
    llama_py_exchange(text LLAMA_PY_RPC
        "    if (response.remote_ptr != 0) {\n        ggml_backend_buffer_t buffer"
        "    if (response.remote_ptr != 0 && llama_py_is_size(response.remote_size, size)) {\n        ggml_backend_buffer_t buffer")
    llama_py_exchange(text LLAMA_PY_RPC
        "    return response.max_size;" "    return response.max_size ? response.max_size : SIZE_MAX;")
    llama_py_exchange(text LLAMA_PY_RPC
        "        dispatcher->send(RPC_CMD_GET_ALLOC_SIZE, request, sizeof(*request), &response, sizeof(response));\n"
        "        dispatcher->send(RPC_CMD_GET_ALLOC_SIZE, request, sizeof(*request), &response, sizeof(response));\n        response.alloc_size = llama_py_checked_alloc_size(dispatcher.get(), response.alloc_size, min_size);\n")
    llama_py_exchange(text LLAMA_PY_RPC
        "            cache[cache_hash] = response.alloc_size;"
        "            if (!dispatcher->lost) {\n                cache[cache_hash] = response.alloc_size;\n            }")
    llama_py_exchange(text LLAMA_PY_RPC
        "    return response.device_count;"
        "    return response.device_count > LLAMA_PY_MOST_DEVICES ? 0 : response.device_count;")

    # The server: limits on memory, and clients side by side (serving.h).
    llama_py_exchange(text LLAMA_PY_RPC
        "    response.patch = RPC_PROTO_PATCH_VERSION;"
        "    response.patch = RPC_PROTO_PATCH_VERSION;\n    response.padding = llama_py_serves_many ? LLAMA_PY_ANSWERS_OTHERS : 0;")
    llama_py_exchange(text LLAMA_PY_RPC
        "ggml_backend_buft_alloc_buffer(buft, request.size);"
        "llama_py_alloc_within_limit(backends[dev_id], buft, request.size);")
    llama_py_exchange(text LLAMA_PY_RPC
        "    ggml_backend_buffer_free(buffer);\n    buffers.erase(buffer);"
        "    llama_py_free_counted(buffer);\n    buffers.erase(buffer);")
    llama_py_exchange(text LLAMA_PY_RPC
        "    for (auto buffer : buffers) {\n        ggml_backend_buffer_free(buffer);"
        "    std::lock_guard<std::recursive_mutex> one(llama_py_computing);\n    sync_all_backends();\n    for (auto buffer : buffers) {\n        llama_py_free_counted(buffer);")
    # One command at a time; what comes over the network is waited for without the lock.
    string(REPLACE "if (!server." "if (std::lock_guard<std::recursive_mutex> one(llama_py_computing); !server." locked "${text}")
    if (locked STREQUAL text)
        message(FATAL_ERROR "LLAMA_PY_RPC: this llama.cpp carries out the commands of a client in another way; "
            "see docs/upstream-notes.md, and turn the rule off (-DLLAMA_PY_RPC=OFF) if it serves several")
    endif()
    set(text "${locked}")
    llama_py_exchange(text LLAMA_PY_RPC
        "    response.free_mem = free;"
        "    llama_py_free_within_limit(dev, free, total);\n    response.free_mem = free;")
    llama_py_exchange(text LLAMA_PY_RPC
        "GGML_BACKEND_DL_IMPL(ggml_backend_rpc_reg)" "#include \"${here}/serving.h\"")
    llama_py_write_copy("${into}/ggml-rpc.cpp" "${text}")

    # Sockets: a limit on how long nothing comes.
    file(READ "${folder}/transport.h" text)
    llama_py_exchange(text LLAMA_PY_RPC
        "    static socket_ptr connect(const char * host, int port);"
        "    static socket_ptr connect(const char * host, int port);\n    static socket_ptr adopt(int64_t fd);\n    void watch(double patience, bool answers_others);")
    llama_py_write_copy("${into}/transport.h" "${text}")
    file(READ "${folder}/transport.cpp" text)
    llama_py_exchange(text LLAMA_PY_RPC
        "struct socket_t::impl {" "#include \"${here}/waiting.h\"\n\nstruct socket_t::impl {")
    llama_py_exchange(text LLAMA_PY_RPC
        "    bool     use_rdma;\n    sockfd_t fd;\n};" "    bool     use_rdma;\n    sockfd_t fd;\n    llama_py_watch watched;\n};")
    llama_py_exchange(text LLAMA_PY_RPC
        "    size_t bytes_sent = 0;" "    watched.begin();\n    size_t bytes_sent = 0;")
    llama_py_exchange(text LLAMA_PY_RPC
        "send(fd, (const char *)data + bytes_sent, size_to_send, 0);\n        if (n < 0) {"
        "send(fd, (const char *)data + bytes_sent, size_to_send, LLAMA_PY_NO_SIGNAL);\n        if (n < 0 && watched.goes_on(fd)) {\n            continue;\n        }\n        if (n < 0) {")
    llama_py_exchange(text LLAMA_PY_RPC
        "        bytes_sent += (size_t)n;" "        bytes_sent += (size_t)n;\n        watched.begin();")
    llama_py_exchange(text LLAMA_PY_RPC
        "    size_t bytes_recv = 0;" "    watched.begin();\n    size_t bytes_recv = 0;")
    llama_py_exchange(text LLAMA_PY_RPC
        "size_to_recv, 0);\n        if (n < 0) {"
        "size_to_recv, 0);\n        if (n < 0 && watched.goes_on(fd)) {\n            continue;\n        }\n        if (n < 0) {")
    llama_py_exchange(text LLAMA_PY_RPC
        "        bytes_recv += (size_t)n;" "        bytes_recv += (size_t)n;\n        watched.begin();")
    llama_py_exchange(text LLAMA_PY_RPC
        "    if (::connect(sockfd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {\n        return nullptr;\n    }\n    return socket_ptr("
        "    llama_py_limit_waiting(sockfd, llama_py_patience());\n    if (::connect(sockfd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {\n        return nullptr;\n    }\n    return socket_ptr(")
    string(APPEND text "
socket_ptr socket_t::adopt(int64_t fd) {
    return socket_ptr(new socket_t(std::make_unique<impl>((sockfd_t) fd)));
}

void socket_t::watch(double patience, bool answers_others) {
    pimpl->watched = llama_py_watch(pimpl->fd, patience, answers_others);
}
")
    llama_py_write_copy("${into}/transport.cpp" "${text}")
    foreach (name IN ITEMS ggml-rpc.cpp transport.h transport.cpp)
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${folder}/${name}")
    endforeach()

    add_library(llama_py_rpc SHARED "${into}/ggml-rpc.cpp" "${into}/transport.cpp")
    target_include_directories(llama_py_rpc PRIVATE
        "${LLAMA_PY_SOURCE_DIR}/ggml/include" "${LLAMA_PY_SOURCE_DIR}/ggml/src")
    target_link_libraries(llama_py_rpc PRIVATE ggml-base Threads::Threads)
    target_compile_features(llama_py_rpc PRIVATE cxx_std_17)
    target_compile_definitions(llama_py_rpc PRIVATE GGML_BACKEND_SHARED GGML_BACKEND_BUILD)
    set_target_properties(llama_py_rpc PROPERTIES
        CXX_VISIBILITY_PRESET hidden
        VISIBILITY_INLINES_HIDDEN ON)
    if (WIN32)
        target_link_libraries(llama_py_rpc PRIVATE ws2_32)
    endif()
    llama_py_note_rule(LLAMA_PY_RPC "applied")
endfunction()

# Writes a file if that changes it: else it would be compiled again each time.
function(llama_py_write_copy path text)
    set(present "")
    if (EXISTS "${path}")
        file(READ "${path}" present)
    endif()
    if (NOT present STREQUAL text)
        file(WRITE "${path}" "${text}")
    endif()
endfunction()

llama_py_rpc_servers()

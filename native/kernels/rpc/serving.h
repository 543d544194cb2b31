// What Python calls (llama_py/core/rpc.py). Included at the end of the corrected ggml-rpc.cpp.
#pragma once

#if defined(_WIN32)
#  define LLAMA_PY_RPC_API __declspec(dllexport)
#else
#  define LLAMA_PY_RPC_API __attribute__((visibility("default")))
#endif

static std::atomic<double> llama_py_patience_seconds { 30.0 };

double llama_py_patience() {
    return llama_py_patience_seconds;
}

// One set of backends for all clients: drivers of GPUs do not like to be started while they compute.
static std::vector<ggml_backend_t> llama_py_backends(size_t n_threads, size_t n_devices, ggml_backend_dev_t * devices) {
    static auto & made = *new std::vector<ggml_backend_t>();
    std::lock_guard<std::recursive_mutex> lock(llama_py_computing);
    if (made.size() == n_devices) {
        return made;
    }
    for (size_t i = 0; i < n_devices; i++) {
        ggml_backend_t backend = ggml_backend_dev_init(devices[i], nullptr);
        if (backend == nullptr) {
            break;
        }
        made.push_back(backend);
        auto set_n_threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(devices[i]), "ggml_backend_set_n_threads");
        if (set_n_threads) {
            set_n_threads(backend, (int) n_threads);
        }
    }
    return made;
}

extern "C" {

// The protocol's version: three bytes, the major one first.
LLAMA_PY_RPC_API uint32_t llama_py_rpc_version(void) {
    return RPC_PROTO_MAJOR_VERSION << 16 | RPC_PROTO_MINOR_VERSION << 8 | RPC_PROTO_PATCH_VERSION;
}

// The devices of a server that has just answered; NULL if it does not any more.
LLAMA_PY_RPC_API ggml_backend_reg_t llama_py_rpc_add_server(const char * endpoint) {
    {
        std::lock_guard<std::mutex> lock(llama_py_losses_mutex);
        llama_py_found[endpoint] = llama_py_clock::now().time_since_epoch().count();
    }
    return ggml_backend_rpc_add_server(endpoint);
}

LLAMA_PY_RPC_API void llama_py_rpc_set_patience(double seconds) {
    llama_py_patience_seconds = seconds;
}

// How many connections were lost: to one server, or to all of them.
LLAMA_PY_RPC_API uint64_t llama_py_rpc_losses(const char * endpoint) {
    if (endpoint == nullptr) {
        return llama_py_losses;
    }
    std::lock_guard<std::mutex> lock(llama_py_losses_mutex);
    const auto found = llama_py_losses_of.find(endpoint);
    return found == llama_py_losses_of.end() ? 0 : found->second;
}

// The most bytes that the clients together may have on a device of this server.
LLAMA_PY_RPC_API void llama_py_rpc_limit(ggml_backend_dev_t device, uint64_t bytes) {
    std::lock_guard<std::mutex> lock(llama_py_limits_mutex);
    llama_py_limits[device] = bytes;
}

// Serves one client on a connected socket, which is closed then, until it leaves; 0, or 1 after a failure.
LLAMA_PY_RPC_API int llama_py_rpc_serve(
        int64_t fd, const char * cache_dir, size_t n_threads, size_t n_devices, ggml_backend_dev_t * devices) {
    llama_py_serves_many = true;
    auto sock = socket_t::adopt(fd);
    auto backends = llama_py_backends(n_threads, n_devices, devices);
    int failed = backends.size() != n_devices;
    if (!failed) {
        try {
            rpc_serve_client(backends, cache_dir, sock);
        } catch (const std::exception & error) {  // such as a message of impossible size
            GGML_LOG_ERROR("a client of the RPC server failed: %s\n", error.what());
            failed = 1;
        }
    }
    return failed;
}

}

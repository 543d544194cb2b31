// Servers that cannot be reached any more (see rule.cmake). Included by the corrected ggml-rpc.cpp.
//
// A connection that failed once is not used again: each of its messages is answered by zeros at once, and computing
// fails. Who asks for the count of such losses of an endpoint before and after finds out.
#pragma once

#include <functional>
#include <map>
#include <utility>

// In the byte of the HELLO reply that is unused: the server answers other clients while it computes.
static constexpr uint8_t LLAMA_PY_ANSWERS_OTHERS = 1;
// More devices than any server has: it is not one.
static constexpr uint32_t LLAMA_PY_MOST_DEVICES = 64;

double llama_py_patience();

// Runs a function when its scope ends.
struct llama_py_at_end {
    std::function<void()> run;
    ~llama_py_at_end() { run(); }
};

static std::atomic<uint64_t> llama_py_losses { 0 };  // of all
static std::mutex llama_py_losses_mutex;
static std::map<std::string, uint64_t> llama_py_losses_of;

using llama_py_clock = std::chrono::steady_clock;
static std::map<std::string, llama_py_clock::rep> llama_py_found;  // when somebody said that it is there

// Whether to believe that a server is lost, without trying again: waiting for a frozen one takes long.
static bool llama_py_lost_lately(const std::string & endpoint, llama_py_clock::rep lost_at) {
    std::lock_guard<std::mutex> lock(llama_py_losses_mutex);
    const auto since = llama_py_clock::now().time_since_epoch() - llama_py_clock::duration(lost_at);
    const auto found = llama_py_found.find(endpoint);
    return since < std::chrono::duration<double>(llama_py_patience())
        && (found == llama_py_found.end() || found->second < lost_at);
}

static void llama_py_note_loss(const std::string & endpoint) {
    std::lock_guard<std::mutex> lock(llama_py_losses_mutex);
    llama_py_losses_of[endpoint]++;
    llama_py_losses++;
}

template <typename Dispatcher>
static void llama_py_lose(Dispatcher * dispatcher, const std::string & endpoint) {
    if (!dispatcher->lost.exchange(true)) {
        dispatcher->lost_at = llama_py_clock::now().time_since_epoch().count();
        llama_py_note_loss(endpoint);
        GGML_LOG_ERROR("the RPC server %s is lost: it cannot be reached, or answers nonsense\n", endpoint.c_str());
    }
}

template <typename Message>
static void llama_py_answer_nothing(Message & message) {
    if (message.output) {
        memset(message.output, 0, message.output_size);
    }
}

// What is added to addresses: a power of two, or ggml ends the process.
static size_t llama_py_checked_alignment(uint64_t alignment) {
    const bool possible = alignment != 0 && (alignment & (alignment - 1)) == 0 && alignment <= (1u << 20);
    return possible ? (size_t) alignment : 128;
}

// Where a buffer begins on the server: only computed with here, and compared. ggml ends the process for one that begins
// nowhere, is not aligned, or ends beyond all addresses.
template <typename Dispatcher>
static void * llama_py_checked_base(Dispatcher * dispatcher, ggml_backend_buffer_t buffer, uint64_t base) {
    const bool aligned = base % ggml_backend_buffer_get_alignment(buffer) == 0;
    if (base != 0 && aligned && base <= UINTPTR_MAX / 2) {
        return reinterpret_cast<void *>((uintptr_t) base);
    }
    llama_py_lose(dispatcher, dispatcher->lost_endpoint);
    return reinterpret_cast<void *>((uintptr_t) 1 << 30);  // a multiple of every alignment
}

// More than any device adds to a buffer or a tensor: for its alignment, its rows, or to compute it.
static constexpr uint64_t LLAMA_PY_MOST_ADDED = 1ull << 33;

// Whether a server says the size of what somebody asked it for. ggml ends the process where sizes do not fit, or their
// sum is beyond all addresses.
static bool llama_py_is_size(uint64_t size, uint64_t asked) {
    return size >= asked && size - asked <= LLAMA_PY_MOST_ADDED && size <= UINTPTR_MAX / 4;
}

// Zeros are the answer of a server that is lost already.
template <typename Dispatcher>
static size_t llama_py_checked_alloc_size(Dispatcher * dispatcher, uint64_t size, size_t least) {
    if (size == 0 || size - std::min<uint64_t>(size, least) <= LLAMA_PY_MOST_ADDED) {
        return (size_t) size;
    }
    llama_py_lose(dispatcher, dispatcher->lost_endpoint);
    return least;
}

// -- of a server --------------------------------------------------------------------------------

static std::atomic_bool llama_py_serves_many { false };
// Held by the command of a client while it is carried out: all of them share the backends.
static std::recursive_mutex llama_py_computing;
static std::mutex llama_py_limits_mutex;
static std::unordered_map<ggml_backend_dev_t, uint64_t> llama_py_limits;  // none: as much as there is
static std::unordered_map<ggml_backend_dev_t, uint64_t> llama_py_taken;   // by the buffers of all clients
static std::unordered_map<ggml_backend_buffer_t, std::pair<ggml_backend_dev_t, uint64_t>> llama_py_counted;

static ggml_backend_buffer_t llama_py_alloc_within_limit(
        ggml_backend_t backend, ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_dev_t dev = ggml_backend_get_device(backend);
    {
        std::lock_guard<std::mutex> lock(llama_py_limits_mutex);
        const auto limit = llama_py_limits.find(dev);
        if (limit != llama_py_limits.end() && size > limit->second - std::min(limit->second, llama_py_taken[dev])) {
            return nullptr;
        }
        llama_py_taken[dev] += size;
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(buft, size);
    std::lock_guard<std::mutex> lock(llama_py_limits_mutex);
    if (buffer == nullptr) {
        llama_py_taken[dev] -= size;
    } else {
        llama_py_counted[buffer] = { dev, size };
    }
    return buffer;
}

static void llama_py_free_counted(ggml_backend_buffer_t buffer) {
    {
        std::lock_guard<std::mutex> lock(llama_py_limits_mutex);
        const auto found = llama_py_counted.find(buffer);
        if (found != llama_py_counted.end()) {
            llama_py_taken[found->second.first] -= found->second.second;
            llama_py_counted.erase(found);
        }
    }
    ggml_backend_buffer_free(buffer);
}

static void llama_py_free_within_limit(ggml_backend_dev_t dev, size_t & free, size_t & total) {
    std::lock_guard<std::mutex> lock(llama_py_limits_mutex);
    const auto limit = llama_py_limits.find(dev);
    if (limit != llama_py_limits.end()) {
        total = std::min<size_t>(total, limit->second);
        free = std::min<size_t>(free, limit->second - std::min(limit->second, llama_py_taken[dev]));
    }
}

// Devices that Vulkan loses (see rule.cmake). Included by the corrected ggml-vulkan.cpp.
//
// vulkan.hpp throws where a call fails. Nobody between ggml's interface and Python catches: the process would end.
// So each function of the interface is called through one that does. What a lost device is asked for is zeros, and
// computing fails; a counter tells the caller, who finds out that what came is worth nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <vector>

static std::atomic<uint64_t> llama_py_losses { 0 };  // of all devices
static std::array<std::atomic<uint64_t>, GGML_VK_MAX_DEVICES> llama_py_losses_of {};
static std::mutex llama_py_lost_mutex;
// Never freed: whatever lies on a lost device may still be used, and is answered with nothing.
static std::vector<vk_device> & llama_py_lost_devices = *new std::vector<vk_device>();

static bool llama_py_is_lost(const vk_device & device) {
    if (llama_py_losses == 0) {
        return false;
    }
    std::lock_guard<std::mutex> lock(llama_py_lost_mutex);
    return std::find(llama_py_lost_devices.begin(), llama_py_lost_devices.end(), device) != llama_py_lost_devices.end();
}

// -- who a function of the interface is called for ------------------------------------------------

static vk_device llama_py_device_of(ggml_backend_t backend) {
    return ((ggml_backend_vk_context *) backend->context)->device;
}

static vk_device llama_py_device_of(ggml_backend_buffer_t buffer) {
    const auto & memory = ((ggml_backend_vk_buffer_context *) buffer->context)->dev_buffer;
    return memory ? memory->device : nullptr;
}

static vk_device llama_py_device_of(ggml_backend_dev_t) {
    return nullptr;  // its number only, which stays when the device is made again
}

template <typename First, typename... Others>
static First llama_py_asked(First first, Others...) {
    return first;
}

// A copy between backends, asked of the target's; the source may be the CPU's.
static ggml_backend_t llama_py_asked(ggml_backend_t, ggml_backend_t target, const ggml_tensor *, ggml_tensor *) {
    return target;
}

// Forgets what was recorded and not done, so that the next graph, or the end of the backend, does not wait for it.
static void llama_py_drop_work(ggml_backend_t backend) {
    auto * ctx = (ggml_backend_vk_context *) backend->context;
    ctx->compute_ctx.reset();
    ctx->transfer_ctx.reset();
    ctx->submit_pending = ctx->almost_ready_fence_pending = false;
    try {
        ctx->device->device.waitIdle();
        ctx->device->device.resetFences({ ctx->fence, ctx->almost_ready_fence });
        ggml_vk_graph_cleanup(ctx);
    } catch (const std::exception &) {
        // lost: nothing of it will be used again
    }
}

static void llama_py_drop_work(ggml_backend_buffer_t) {}
static void llama_py_drop_work(ggml_backend_dev_t) {}

// `always`: who called cannot be told by a status that what it has is worth nothing.
static void llama_py_note_failure(const std::exception & error, const vk_device & device, bool always) {
    const bool lost = dynamic_cast<const vk::DeviceLostError *>(&error) != nullptr;
    const size_t number = device ? device->idx : 0;
    GGML_LOG_ERROR("the device %s%zu %s: %s\n", GGML_VK_NAME, number, lost ? "is lost" : "failed", error.what());
    if (lost && device && !llama_py_is_lost(device)) {
        std::lock_guard<std::mutex> lock(llama_py_lost_mutex);
        llama_py_lost_devices.push_back(device);
    }
    if (lost || always) {
        llama_py_losses_of[number]++;
        llama_py_losses++;
    }
}

// -- what is answered then --------------------------------------------------------------------------

template <typename... Arguments>
static void llama_py_write_zeros(Arguments...) {}

template <typename Where>
static void llama_py_write_zeros(Where, const ggml_tensor *, void * data, size_t, size_t size) {
    memset(data, 0, size);
}

template <typename Where>
static void llama_py_write_zeros(
        Where, const ggml_tensor *, void * data, size_t, size_t size, size_t copies, size_t, size_t stride) {
    for (size_t copy = 0; copy < copies; copy++) {
        memset((char *) data + copy * stride, 0, size);
    }
}

template <typename Result>
static Result llama_py_nothing() {
    if constexpr (std::is_same_v<Result, ggml_status>) {
        return GGML_STATUS_FAILED;
    } else {
        return Result();
    }
}

// -- the interface -----------------------------------------------------------------------------------

// A function of an interface: `own` is ggml's, and `call` takes its place. `frees`: also for a lost device.
template <auto Member, bool Frees>
struct llama_py_caught;

template <typename Interface, typename Result, typename First, typename... Others,
          Result (*Interface::*Member)(First, Others...), bool Frees>
struct llama_py_caught<Member, Frees> {
    static inline Result (*own)(First, Others...) = nullptr;

    static Result call(First first, Others... others) {
        const auto asked = llama_py_asked(first, others...);
        const vk_device device = llama_py_device_of(asked);
        if (Frees || !llama_py_is_lost(device)) {
            try {
                return own(first, others...);
            } catch (const std::exception & error) {
                llama_py_note_failure(error, device, !std::is_same_v<Result, ggml_status>);
                llama_py_drop_work(asked);
            }
        }
        llama_py_write_zeros(first, others...);
        return llama_py_nothing<Result>();
    }
};

template <auto Member, bool Frees = false, typename Interface>
static void llama_py_catch(Interface & interface) {
    if (interface.*Member != nullptr) {
        llama_py_caught<Member, Frees>::own = interface.*Member;
        interface.*Member = &llama_py_caught<Member, Frees>::call;
    }
}

static ggml_backend_buffer_i llama_py_caught_all(ggml_backend_buffer_i made) {
    llama_py_catch<&ggml_backend_buffer_i::free_buffer, true>(made);
    llama_py_catch<&ggml_backend_buffer_i::memset_tensor>(made);
    llama_py_catch<&ggml_backend_buffer_i::set_tensor>(made);
    llama_py_catch<&ggml_backend_buffer_i::get_tensor>(made);
    llama_py_catch<&ggml_backend_buffer_i::set_tensor_2d>(made);
    llama_py_catch<&ggml_backend_buffer_i::get_tensor_2d>(made);
    llama_py_catch<&ggml_backend_buffer_i::cpy_tensor>(made);
    llama_py_catch<&ggml_backend_buffer_i::clear>(made);
    return made;
}

static ggml_backend_i llama_py_caught_all(ggml_backend_i made) {
    llama_py_catch<&ggml_backend_i::free, true>(made);
    llama_py_catch<&ggml_backend_i::set_tensor_async>(made);
    llama_py_catch<&ggml_backend_i::get_tensor_async>(made);
    llama_py_catch<&ggml_backend_i::set_tensor_2d_async>(made);
    llama_py_catch<&ggml_backend_i::get_tensor_2d_async>(made);
    llama_py_catch<&ggml_backend_i::cpy_tensor_async>(made);
    llama_py_catch<&ggml_backend_i::synchronize>(made);
    llama_py_catch<&ggml_backend_i::graph_compute>(made);
    llama_py_catch<&ggml_backend_i::event_record>(made);
    llama_py_catch<&ggml_backend_i::event_wait>(made);
    llama_py_catch<&ggml_backend_i::graph_optimize>(made);
    return made;
}

// An event does not say which device it is of; after a loss it may be one that is not there any more.
static void (*llama_py_free_event)(ggml_backend_dev_t, ggml_backend_event_t);

static ggml_backend_device_i llama_py_caught_all(ggml_backend_device_i made) {
    llama_py_catch<&ggml_backend_device_i::event_new>(made);
    llama_py_catch<&ggml_backend_device_i::event_synchronize>(made);
    llama_py_free_event = made.event_free;
    made.event_free = [](ggml_backend_dev_t device, ggml_backend_event_t event) {
        if (llama_py_losses == 0) {
            llama_py_free_event(device, event);
        }
    };
    return made;
}

// Once for each interface: all that are made of it have the same functions.
template <typename Interface>
static const Interface & llama_py_catching(const Interface & own) {
    static const Interface made = llama_py_caught_all(own);
    return made;
}

// -- what Python asks --------------------------------------------------------------------------------

// The device of a number, made again if it was lost: a driver that started again serves the next model.
static vk_device llama_py_working_device(size_t number) {
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    const vk_device present = vk_instance.devices[number];
    if (!llama_py_is_lost(present)) {
        return ggml_vk_get_device(number);
    }
    vk_instance.devices[number] = nullptr;
    try {
        return ggml_vk_get_device(number);
    } catch (const std::exception &) {
        new vk_device(vk_instance.devices[number]);  // half of it is there, which nobody could free
        vk_instance.devices[number] = present;
        throw;
    }
}

// How often a device was lost, or failed where no status says so; of all devices for NULL.
static uint64_t llama_py_count_losses(ggml_backend_dev_t device) {
    if (device == nullptr) {
        return llama_py_losses;
    }
    return llama_py_losses_of[((ggml_backend_vk_device_context *) device->context)->device];
}

static void * llama_py_function(ggml_backend_reg_t, const char * name) {
    return strcmp(name, "llama_py_count_losses") == 0 ? (void *) llama_py_count_losses : nullptr;
}

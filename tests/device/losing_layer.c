/* A Vulkan layer that loses devices: while the file $LOSE_DEVICES exists, every device that is used is lost, and
 * stays so, as one does whose driver gave it up. One that is made later is well.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vulkan.h>
#include <vulkan/vk_layer.h>

#define EXPORTED __attribute__((visibility("default")))
#define MOST 64

static PFN_vkGetInstanceProcAddr of_instance;
static PFN_vkGetDeviceProcAddr of_device;
static VkInstance instance;
static void * lost[MOST];
static int count;

/* Devices and their queues begin with the same pointer, by which the loader knows them. */
static int is_lost(VkDevice device, void * handle) {
    void * key = *(void **) handle;
    for (int i = 0; i < count; i++) {
        if (lost[i] == key) {
            return 1;
        }
    }
    const char * path = getenv("LOSE_DEVICES");
    if (path == NULL || access(path, F_OK) != 0 || count == MOST) {
        return 0;
    }
    if (device != NULL) { /* what runs in software goes on running: let it end */
        ((PFN_vkDeviceWaitIdle) of_device(device, "vkDeviceWaitIdle"))(device);
    }
    lost[count++] = key;
    return 1;
}

static VkDevice last;

static VkResult lose_vkQueueSubmit(VkQueue queue, uint32_t n, const VkSubmitInfo * submits, VkFence fence) {
    if (is_lost(last, queue)) {
        return VK_ERROR_DEVICE_LOST;
    }
    return ((PFN_vkQueueSubmit) of_device(last, "vkQueueSubmit"))(queue, n, submits, fence);
}

static VkResult lose_vkWaitForFences(VkDevice device, uint32_t n, const VkFence * fences, VkBool32 all, uint64_t limit) {
    if (is_lost(device, device)) {
        return VK_ERROR_DEVICE_LOST;
    }
    return ((PFN_vkWaitForFences) of_device(device, "vkWaitForFences"))(device, n, fences, all, limit);
}

static VkResult lose_vkGetFenceStatus(VkDevice device, VkFence fence) {
    if (is_lost(device, device)) {
        return VK_ERROR_DEVICE_LOST;
    }
    return ((PFN_vkGetFenceStatus) of_device(device, "vkGetFenceStatus"))(device, fence);
}

static VkResult lose_vkDeviceWaitIdle(VkDevice device) {
    if (is_lost(device, device)) {
        return VK_ERROR_DEVICE_LOST;
    }
    return ((PFN_vkDeviceWaitIdle) of_device(device, "vkDeviceWaitIdle"))(device);
}

static VkResult lose_vkCreateInstance(
        const VkInstanceCreateInfo * info, const VkAllocationCallbacks * allocator, VkInstance * made) {
    VkLayerInstanceCreateInfo * link = (VkLayerInstanceCreateInfo *) info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO) {
        link = (VkLayerInstanceCreateInfo *) link->pNext;
    }
    of_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateInstance) of_instance(NULL, "vkCreateInstance"))(info, allocator, made);
    instance = *made;
    return result;
}

static VkResult lose_vkCreateDevice(
        VkPhysicalDevice physical, const VkDeviceCreateInfo * info, const VkAllocationCallbacks * allocator,
        VkDevice * made) {
    VkLayerDeviceCreateInfo * link = (VkLayerDeviceCreateInfo *) info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO) {
        link = (VkLayerDeviceCreateInfo *) link->pNext;
    }
    of_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    PFN_vkGetInstanceProcAddr next = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateDevice) next(instance, "vkCreateDevice"))(physical, info, allocator, made);
    last = *made;
    return result;
}

EXPORTED VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetDeviceProcAddr(VkDevice device, const char * name);
EXPORTED VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance of, const char * name);

#define HOOK(function) \
    if (strcmp(name, #function) == 0) { \
        return (PFN_vkVoidFunction) lose_##function; \
    }

static PFN_vkVoidFunction hooked(const char * name) {
    HOOK(vkQueueSubmit)
    HOOK(vkWaitForFences)
    HOOK(vkGetFenceStatus)
    HOOK(vkDeviceWaitIdle)
    HOOK(vkCreateDevice)
    HOOK(vkCreateInstance)
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        return (PFN_vkVoidFunction) vkGetDeviceProcAddr;
    }
    return NULL;
}

PFN_vkVoidFunction vkGetDeviceProcAddr(VkDevice device, const char * name) {
    PFN_vkVoidFunction found = hooked(name);
    return found != NULL ? found : of_device(device, name);
}

PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance of, const char * name) {
    PFN_vkVoidFunction found = hooked(name);
    return found != NULL ? found : of_instance(of, name);
}

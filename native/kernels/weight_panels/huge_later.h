// Memory that is written once, right after it was allocated, and then read for as long as a model is there: it gets
// small pages, and huge ones later on.
//
// A virtual machine may have to get each page from its host when it is touched for the first time, and a huge one then
// takes milliseconds. Two cores of an AMD EPYC under Firecracker, weights of 1.1 GB: loading takes 2.4 s with huge pages
// from the beginning, and 1.0 s with small ones; but a token of a reply then takes 5 % more. So a thread that stands back
// behind all others makes huge pages of them, some seconds after the last weight was arranged.
#ifndef LLAMA_PY_HUGE_LATER_H
#define LLAMA_PY_HUGE_LATER_H

#include <cstddef>

#if defined(__linux__) && !defined(LLAMA_PY_SMALL_PAGES)

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; older ones refuse it
#endif

namespace llama_py_panels {

class HugeLater {
  public:
    // Of memory that is empty so far.
    HugeLater(void * memory, size_t size) : state(std::make_shared<State>()), left(size) {
        state->begin = ((uintptr_t) memory + PAGE - 1)/PAGE*PAGE;
        state->end   = ((uintptr_t) memory + size)/PAGE*PAGE;
        if (state->begin >= state->end || !are_given()) {
            left = 0;  // nothing to do
        } else if (madvise((void *) state->begin, state->end - state->begin, MADV_NOHUGEPAGE) != 0) {
            left = 0;
        }
    }

    // Once it returns, nothing touches the memory any more.
    ~HugeLater() {
        state->stop = true;
        // In a forked child there is no such thread.
        while (state->runs && state->process == getpid()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    HugeLater(const HugeLater &) = delete;
    HugeLater & operator=(const HugeLater &) = delete;

    // So many bytes more were written; with the last ones, the waiting begins.
    void wrote(size_t bytes) {
        if (left == 0) {
            return;
        }
        left -= bytes < left ? bytes : left;
        if (left >= PAGE) {  // tensors may be followed by a few bytes
            return;
        }
        left = 0;
        state->runs    = true;
        state->process = getpid();
        try {
            std::thread(work, state).detach();
        } catch (const std::system_error &) {  // no threads here: khugepaged may do it
            state->runs = false;
            (void) madvise((void *) state->begin, state->end - state->begin, MADV_HUGEPAGE);
        }
    }

  private:
    static constexpr uintptr_t PAGE = 2 << 20;  // a huge one
    // In which a first prompt is evaluated.
    static constexpr auto WAITING = std::chrono::seconds(3);

    struct State {
        uintptr_t begin = 0, end = 0;
        std::atomic<bool> stop{false}, runs{false};
        pid_t process = 0;
    };

    std::shared_ptr<State> state;
    size_t left;

    static bool are_given() {
        char words[64] = "";
        if (FILE * file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r")) {
            const size_t count = fread(words, 1, sizeof(words) - 1, file);
            words[count] = 0;
            fclose(file);
        }
        return words[0] && !strstr(words, "[never]");
    }

    static void work(std::shared_ptr<State> state) {
        (void) setpriority(PRIO_PROCESS, (id_t) syscall(SYS_gettid), 19);
        const auto start = std::chrono::steady_clock::now() + WAITING;
        while (!state->stop && std::chrono::steady_clock::now() < start) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        if (!state->stop) {
            (void) madvise((void *) state->begin, state->end - state->begin, MADV_HUGEPAGE);
        }
        int refused = 0;
        for (uintptr_t page = state->begin; page < state->end && !state->stop && refused < 16; page += PAGE) {
            refused += madvise((void *) page, PAGE, MADV_COLLAPSE) != 0;
        }
        state->runs = false;
    }
};

} // namespace llama_py_panels

#else

namespace llama_py_panels {

class HugeLater {
  public:
    HugeLater(void *, size_t) {}
    void wrote(size_t) {}
};

} // namespace llama_py_panels

#endif
#endif

// llama-batched-bench whose output is complete: it prints through llama.cpp's log, which another
// thread writes, and upstream's main returns without waiting for it.
#include "log.h"

int llama_batched_bench(int argc, char ** argv);

int main(int argc, char ** argv) {
    const int code = llama_batched_bench(argc, argv);
    common_log_pause(common_log_main());
    return code;
}

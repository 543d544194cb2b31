/* The progress of loading a model, which can be stopped.
 *
 * llama.cpp calls back for each tensor. A callback in Python would take the interpreter's lock each
 * time, while another thread may be using it, so this one is in C: it reads a flag, and calls on only
 * now and then.
 */
#ifndef LLAMA_PY_LOADING_H
#define LLAMA_PY_LOADING_H

#include "llama_py_chat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns false to stop the loading. */
typedef bool (*llama_py_loading_ask)(float done, void * data);

struct llama_py_loading {
    float                step;    /* how much has to be loaded before `ask` is called again */
    float                next;    /* where it is called next; 0 at first */
    float                done;    /* how much is loaded, 0 to 1 */
    bool                 stopped; /* set by any thread: the loading ends at the next tensor */
    llama_py_loading_ask ask;     /* called by the thread that loads, also when all is loaded */
};

/* For llama_model_params.progress_callback; the user data is a struct llama_py_loading. */
LLAMA_PY_CHAT_API bool llama_py_loading_progress(float done, void * loading);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_LOADING_H */

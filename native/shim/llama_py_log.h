/* llama.cpp's log, for a receiver in Python.
 *
 * Loading a model logs hundreds of lines that nobody reads as a rule. A receiver in Python takes the
 * interpreter's lock for each of them, and waits for it where another thread is using it: up to five
 * milliseconds a line. So a thread can say which lines it wants.
 */
#ifndef LLAMA_PY_LOG_H
#define LLAMA_PY_LOG_H

#include "llama_py_chat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As ggml_log_callback: the level is an enum ggml_log_level. */
typedef void (*llama_py_log_receiver)(int32_t level, const char * text, void * data);

/* Everything that llama.cpp and ggml log goes to this one from now on, for good. */
LLAMA_PY_CHAT_API void llama_py_log_to(llama_py_log_receiver receiver);

/* Of what this thread logs, only lines of this level and above (with their continuations); 0 is
 * everything, and what a thread begins with. */
LLAMA_PY_CHAT_API void llama_py_log_least(int32_t level);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_LOG_H */

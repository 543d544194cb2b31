/* Ending a llama_decode from another thread, or at a point in time.
 *
 * llama.cpp asks its abort callback before each node of the graph. A callback in Python would take
 * the interpreter's lock each time, so this one is in C: it reads a flag and a clock.
 */
#ifndef LLAMA_PY_ABORT_H
#define LLAMA_PY_ABORT_H

#include "llama_py_chat.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_context;
struct llama_py_abort;

LLAMA_PY_CHAT_API struct llama_py_abort * llama_py_abort_init(void);

/* The context must not decode any more. */
LLAMA_PY_CHAT_API void llama_py_abort_free(struct llama_py_abort * abort);

/* Lets llama_decode(context) return 2 once it is asked to. */
LLAMA_PY_CHAT_API void llama_py_abort_attach(
        struct llama_py_abort * abort,
        struct llama_context  * context);

/* Asks for the end of what is being decoded, or of what is decoded next. From any thread. */
LLAMA_PY_CHAT_API void llama_py_abort_ask(struct llama_py_abort * abort);

/* Ends every decode from these seconds on; infinity for never. Not during a decode. */
LLAMA_PY_CHAT_API void llama_py_abort_after(struct llama_py_abort * abort, double seconds);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_ABORT_H */

/* llama_py_chat: a C ABI over llama.cpp's chat code, which is C++ only.
 *
 * The formats of the model families that it knows: the messages and options that their templates
 * expect, the tool-call and reasoning parsers of their replies; and the conversion from JSON schema
 * to a GBNF grammar. The text of a template is rendered by the caller (llama_py_chat_renderer):
 * llama.cpp's own Jinja engine has no limits, and writes other text than Jinja2 does.
 *
 * Conventions, the same for every function here:
 *   - Strings are UTF-8. Structured values travel as JSON text.
 *   - A function that takes `char ** error` never throws and never ends the process. On failure
 *     it returns NULL and sets *error to a message; on success *error is NULL.
 *     `error` itself may be NULL, and then the message is lost.
 *   - Every `char *` that comes back, error messages included, belongs to the caller, who
 *     gives it to llama_py_chat_string_free.
 *   - A templates handle may be used from several threads at once (apply does not change it);
 *     a parser handle belongs to one thread at a time.
 */
#ifndef LLAMA_PY_CHAT_H
#define LLAMA_PY_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#    if defined(LLAMA_PY_CHAT_BUILD)
#        define LLAMA_PY_CHAT_API __declspec(dllexport)
#    else
#        define LLAMA_PY_CHAT_API __declspec(dllimport)
#    endif
#else
#    define LLAMA_PY_CHAT_API __attribute__((visibility("default")))
#endif

/* Changes when a function below changes its meaning; the Python side compares it. */
#define LLAMA_PY_CHAT_ABI_VERSION 4

#ifdef __cplusplus
extern "C" {
#endif

struct llama_model;

struct llama_py_chat_templates;
struct llama_py_chat_parser;

LLAMA_PY_CHAT_API int32_t llama_py_chat_abi_version(void);

/* Frees a string that a function of this library returned; NULL is allowed. */
LLAMA_PY_CHAT_API void llama_py_chat_string_free(char * text);

/* ---- templates ---------------------------------------------------------------------------- */

/* Renders a template, in the thread of the function that it was given to, and before that returns.
 *
 * source  the template's text
 * values  the template's variables, as a JSON object; NULL asks what the template can do, and the
 *         answer is an object of bools, with the names of "caps" below
 * answer  for llama_py_chat_answer, which takes the text
 *
 * Returns false on failure; the text is the reason then.
 */
typedef bool (*llama_py_chat_renderer)(const char * source, const char * values, void * answer);

/* The text that a renderer answers. */
LLAMA_PY_CHAT_API void llama_py_chat_answer(void * answer, const char * text, size_t size);

/* Reads a chat template.
 *
 * model          the model whose template and BOS / EOS texts to use; may be NULL.
 * template_text  a Jinja template that replaces the model's, or NULL for the model's own.
 *                With neither a model nor a text this is an error.
 * bos, eos       texts of those tokens, used only without a model; NULL means "".
 * renderer       renders it, often, to find out how its family writes.
 */
LLAMA_PY_CHAT_API struct llama_py_chat_templates * llama_py_chat_templates_init(
        const struct llama_model * model,
        const char               * template_text,
        const char               * bos,
        const char               * eos,
        llama_py_chat_renderer     renderer,
        char                    ** error);

LLAMA_PY_CHAT_API void llama_py_chat_templates_free(struct llama_py_chat_templates * templates);

/* What the templates are, as a JSON object:
 *   source           string, the template's text
 *   source_tool_use  string, the separate template for requests with tools, or ""
 *   explicit         bool, false when the model had none and ChatML stands in
 *   caps             object of bools: what the template can express
 *   thinking         bool, whether enable_thinking changes what it renders
 */
LLAMA_PY_CHAT_API char * llama_py_chat_templates_info(
        const struct llama_py_chat_templates * templates,
        llama_py_chat_renderer                 renderer,
        char                                ** error);

/* Renders a conversation.
 *
 * inputs_json    an object. Only "messages" is required:
 *   messages               array in OpenAI's form
 *   tools                  array in OpenAI's form
 *   tool_choice            "auto" | "none" | "required"
 *   parallel_tool_calls    bool (default: what the template supports)
 *   json_schema            a schema that the reply has to follow
 *   grammar                GBNF text that the reply has to follow (not with tools)
 *   add_generation_prompt  bool (default true)
 *   continue_final_message false | true | "content" | "reasoning_content"
 *   reasoning_format       "none" | "auto" | "deepseek" | "deepseek-legacy" (default "auto")
 *   enable_thinking        bool (default true)
 *   template_kwargs        object, values of any JSON type, visible to the template by name
 *   now                    integer, seconds since the epoch (default: the clock): the variables
 *                          date_string and datetime.
 *   prompt_only            bool (default false): render the prompt and nothing else; cheaper, and
 *                          without what llama.cpp adds for single model families
 *
 * The answer is an object:
 *   prompt, generation_prompt     strings; the second is the end of the first that opens the reply,
 *                                 with a continued message's text. A grammar that is not lazy has
 *                                 to accept it before the first generated token.
 *   grammar                       GBNF text or ""
 *   grammar_lazy                  bool
 *   grammar_triggers              array of {type: "token"|"word"|"pattern"|"pattern_full", value}
 *   trigger_patterns              array of strings: the same triggers, words and all, as the
 *                                 regular expressions that a lazy grammar sampler takes
 *   preserved_tokens              array of strings: special tokens whose text the reply needs
 *   additional_stops              array of strings
 *   supports_thinking             bool
 *   thinking_start_tag            string or ""
 *   thinking_end_tags             array of strings
 *   message_delimiters            array of {role, delimiter}
 *   plain                         bool: the reply is content and nothing else, so that no parser is
 *                                 needed
 *   has_tool_calls                bool: the parser can find tool calls in a reply
 *   format                        name of the parser's kind
 *   parser                        an object for llama_py_chat_parser_init, to be passed on as it is
 */
LLAMA_PY_CHAT_API char * llama_py_chat_apply(
        const struct llama_py_chat_templates * templates,
        const char                           * inputs_json,
        llama_py_chat_renderer                 renderer,
        char                                ** error);

/* ---- parsing replies ---------------------------------------------------------------------- */

/* Makes a parser for one reply from the "parser" object that llama_py_chat_apply returned. */
LLAMA_PY_CHAT_API struct llama_py_chat_parser * llama_py_chat_parser_init(
        const char * parser_json,
        char      ** error);

LLAMA_PY_CHAT_API void llama_py_chat_parser_free(struct llama_py_chat_parser * parser);

/* Parses a whole reply (without the generation prompt), independent of what was fed before.
 *
 * With is_partial the text is the beginning of a reply, and what may yet turn into a marker is
 * held back. The answer is a message in OpenAI's form: role, content, and if there are any
 * reasoning_content and tool_calls (their ids only if the model wrote them).
 */
LLAMA_PY_CHAT_API char * llama_py_chat_parse(
        const struct llama_py_chat_parser * parser,
        const char                        * text,
        size_t                              len,
        bool                                is_partial,
        char                             ** error);

/* Takes the next piece of a reply and says what is new in the message.
 *
 * text   the piece, `len` bytes; need not end at a character boundary.
 * final  true for the last call. What was held back as a possible marker is then text. A reply
 *        that the format does not allow is told as far as it was understood, the rest as content,
 *        and "complete" is false; so it is when a call or the reasoning was cut off. JSON that is
 *        nested more than 200 levels deep is text that the format does not allow.
 *
 * The answer is NULL, without an error, when there is nothing new. Otherwise an array of
 *   {"content": "..."} | {"reasoning": "..."} |
 *   {"tool_call": index, "id": "...", "name": "...", "arguments": "..."}   (each may be absent) |
 *   {"complete": bool}                                                     (last, when final)
 * Concatenating them in order gives the message that llama_py_chat_parse finds in the whole text.
 */
LLAMA_PY_CHAT_API char * llama_py_chat_parser_feed(
        struct llama_py_chat_parser * parser,
        const char                  * text,
        size_t                        len,
        bool                          final,
        char                       ** error);

/* ---- grammars ----------------------------------------------------------------------------- */

/* Converts a JSON schema (JSON text) to a GBNF grammar whose root rule is "root". */
LLAMA_PY_CHAT_API char * llama_py_chat_schema_to_grammar(
        const char * schema_json,
        char      ** error);

#ifdef __cplusplus
}
#endif

#endif /* LLAMA_PY_CHAT_H */

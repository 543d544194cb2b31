// The implementation of llama_py_chat.h: see there for the contract.
//
// Two things here are more than a translation:
//
//  1. What a reply ends with. llama.cpp's parsers are lenient: they hold back text that may be the
//     beginning of a marker, also at the very end, where it can no longer become one. The last
//     feed gives such text back (parse_reply), so that no generated text is lost.
//
//  2. Cost. A PEG parser starts from the beginning each time, so parsing after every token takes
//     quadratic time. Inside running content or reasoning the only thing that can happen is one
//     of the known end markers, and looking for those needs the new text alone (TextTail).
//     Elsewhere (arguments of a tool call) the parser runs again only after the reply has grown
//     by a fixed fraction (parse_due), which keeps the total linear.

#if defined(_WIN32) && !defined(LLAMA_PY_CHAT_BUILD)
#    define LLAMA_PY_CHAT_BUILD
#endif

#include "llama_py_chat.h"
#include "llama_py_arena.h"
#include "llama_py_render.h"

#include "chat-peg-parser.h"
#include "chat.h"
#include "common.h"
#include "json-schema-to-grammar.h"
#include "json.h"
#include "log.h"
#include "peg-parser.h"

#include "llama.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

struct llama_py_chat_templates {
    common_chat_templates_ptr handle;
    std::string               source;
    std::string               source_tool_use;
};

namespace {

using json = common_json;

// ---- the boundary: strings and exceptions --------------------------------------------------

char * copy_out(const std::string & text) {
    auto * out = static_cast<char *>(std::malloc(text.size() + 1));
    if (out == nullptr) {
        throw std::bad_alloc();
    }
    std::memcpy(out, text.c_str(), text.size() + 1);
    return out;
}

void report(char ** error, const char * message) noexcept {
    if (error == nullptr) {
        return;
    }
    const char * text = message != nullptr && *message != '\0' ? message : "unknown error";
    *error            = static_cast<char *>(std::malloc(std::strlen(text) + 1));
    if (*error != nullptr) {
        std::strcpy(*error, text);
    }
}

// Runs `body`, which returns a pointer; every exception becomes NULL and a message.
template <typename Body> auto guarded(char ** error, Body && body) noexcept -> decltype(body()) {
    if (error != nullptr) {
        *error = nullptr;
    }
    try {
        return body();
    } catch (const std::bad_alloc &) {
        report(error, "out of memory");
    } catch (const std::exception & e) {
        report(error, e.what());
    } catch (...) {
        report(error, "an error that is no C++ exception");
    }
    return nullptr;
}

// A library prints nothing: what goes wrong here is reported through `error`.
void silence_common_log() {
    static const bool done = [] {
        common_log_set_verbosity_thold(-1);
        return true;
    }();
    (void) done;
}

template <typename T> T & required(T * pointer, const char * name) {
    if (pointer == nullptr) {
        throw std::invalid_argument(std::string(name) + " is NULL");
    }
    return *pointer;
}

json parse_object(const char * text, const char * name) {
    json value = json::parse(&required(text, name));
    if (!value.is_object()) {
        throw std::invalid_argument(std::string(name) + " is not a JSON object");
    }
    return value;
}

bool has(const json & object, const char * key) {
    return object.contains(key) && !object.at(key).is_null();
}

bool flag(const json & object, const char * key, bool fallback) {
    return has(object, key) ? object.at(key).get<bool>() : fallback;
}

std::string text_of(const json & object, const char * key, const std::string & fallback = "") {
    return has(object, key) ? object.at(key).get<std::string>() : fallback;
}

// ---- rendering -----------------------------------------------------------------------------

// The renderer of the call that this thread is in.
thread_local llama_py_chat_renderer current_renderer = nullptr;

struct RendererOfCall {
    llama_py_chat_renderer before = current_renderer;

    explicit RendererOfCall(llama_py_chat_renderer renderer) {
        if (renderer == nullptr) {
            throw std::invalid_argument("renderer is NULL");
        }
        current_renderer = renderer;
    }
    ~RendererOfCall() { current_renderer = before; }
};

std::string answer_of_renderer(const std::string & source, const char * values) {
    std::string answer;
    if (current_renderer == nullptr) {
        throw std::logic_error("a template was rendered outside of a call");
    }
    if (!current_renderer(source.c_str(), values, &answer)) {
        throw std::runtime_error(answer);
    }
    return answer;
}

// A time as a JSON string.
std::string quoted_time(std::time_t seconds, const char * format) {
    char       buffer[64];
    const auto n = std::strftime(buffer, sizeof(buffer), format, std::localtime(&seconds));
    return json(std::string(buffer, n)).dump();
}

bool can(const common_chat_templates * templates, const char * ability) {
    const auto caps  = common_chat_templates_get_caps(templates);
    const auto found = caps.find(ability);
    return found != caps.end() && found->second;
}

// A system message becomes a part of the next message where the template has no such role. llama.cpp
// does that, too, but only where both are one text, and fails where one of them consists of parts.
void merge_system(std::vector<common_chat_msg> & messages, const common_chat_templates * templates, bool continues) {
    const size_t least = continues ? 3 : 2; // a message to be continued stays as it is
    if (messages.size() < least || can(templates, "supports_system_role")) {
        return;
    }
    const auto & system = messages.front();
    auto &       next   = messages[1];
    if ((system.role != "system" && system.role != "developer") || system.contains_media() || next.contains_media()) {
        return;
    }
    next.content = system.render_content("\n") + "\n" + next.render_content("\n");
    next.content_parts.clear();
    messages.erase(messages.begin());
}

common_chat_templates_inputs read_inputs(const json & in, const common_chat_templates * templates) {
    common_chat_templates_inputs out;
    if (!has(in, "messages")) {
        throw std::invalid_argument("inputs need \"messages\"");
    }
    out.messages    = common_chat_msgs_parse_oaicompat(in.at("messages"));
    out.tools       = common_chat_tools_parse_oaicompat(has(in, "tools") ? in.at("tools") : json());
    out.tool_choice = common_chat_tool_choice_parse_oaicompat(text_of(in, "tool_choice", "auto"));
    if (has(in, "parallel_tool_calls")) {
        out.parallel_tool_calls = in.at("parallel_tool_calls").get<bool>();
    } else {
        out.parallel_tool_calls = can(templates, "supports_parallel_tool_calls");
    }
    out.json_schema           = has(in, "json_schema") ? in.at("json_schema").dump() : "";
    out.grammar               = text_of(in, "grammar");
    out.add_generation_prompt = flag(in, "add_generation_prompt", true);
    if (has(in, "continue_final_message")) {
        out.continue_final_message = common_chat_continuation_parse(in.at("continue_final_message"));
    }
    merge_system(out.messages, templates, out.continue_final_message != COMMON_CHAT_CONTINUATION_NONE);
    out.reasoning_format   = common_reasoning_format_from_name(text_of(in, "reasoning_format", "auto"));
    out.enable_thinking    = flag(in, "enable_thinking", true);
    out.force_pure_content = flag(in, "prompt_only", false);
    if (has(in, "now")) {
        const auto seconds = static_cast<std::time_t>(in.at("now").get<int64_t>());
        out.now            = std::chrono::system_clock::from_time_t(seconds);
        // The two variables that llama.cpp otherwise sets from the clock.
        out.chat_template_kwargs["date_string"] = quoted_time(seconds, "%d %b %Y");
        out.chat_template_kwargs["datetime"]    = quoted_time(seconds, "%b %d %Y");
    }
    if (has(in, "template_kwargs")) {
        for (const auto & entry : in.at("template_kwargs").items()) {
            out.chat_template_kwargs[entry.key()] = entry.value().dump();
        }
    }
    return out;
}

const char * trigger_name(common_grammar_trigger_type type) {
    switch (type) {
        case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN:        return "token";
        case COMMON_GRAMMAR_TRIGGER_TYPE_WORD:         return "word";
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN:      return "pattern";
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL: return "pattern_full";
    }
    return "word";
}

// The regular expression that a lazy grammar sampler takes in place of this trigger.
std::string trigger_pattern(const common_grammar_trigger & trigger) {
    if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN) {
        return trigger.value;
    }
    if (trigger.type != COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL) {
        return regex_escape(trigger.value);
    }
    std::string pattern = trigger.value;
    if (pattern.empty() || pattern.front() != '^') {
        pattern.insert(pattern.begin(), '^');
    }
    if (pattern.back() != '$') {
        pattern.push_back('$');
    }
    return pattern;
}

json strings(const std::vector<std::string> & values) {
    json out = json::array();
    for (const auto & value : values) {
        out.push_back(value);
    }
    return out;
}

void write_triggers(json & out, const std::vector<common_grammar_trigger> & triggers) {
    json list     = json::array();
    json patterns = json::array();
    for (const auto & trigger : triggers) {
        list.push_back({
            { "type",  trigger_name(trigger.type) },
            { "value", trigger.value              },
        });
        patterns.push_back(trigger_pattern(trigger));
    }
    out["grammar_triggers"] = list;
    out["trigger_patterns"] = patterns;
}

// ---- what the parser of a reply can stop at -------------------------------------------------

// Finds the end markers of running text, and whether text is all that content and reasoning are.
//
// `exact` says that inside a node tagged content (or reasoning) nothing but one of `markers` can
// end the text. It is false where the content is JSON that follows a schema.
struct TextMarkers {
    std::vector<std::string> markers;
    std::array<bool, 256>    first_byte{};
    bool                     exact = true;

    explicit TextMarkers(const common_peg_arena & arena) {
        for (size_t id = 0; id < arena.size(); ++id) {
            const auto & node = arena.get(id);
            if (const auto * until = std::get_if<common_peg_until_parser>(&node)) {
                markers.insert(markers.end(), until->delimiters.begin(), until->delimiters.end());
            }
            if (const auto * tag = std::get_if<common_peg_tag_parser>(&node)) {
                if (is_text_tag(tag->tag) && !ends_in_text(arena, tag->child, 0)) {
                    exact = false;
                }
            }
        }
        for (const auto & marker : markers) {
            if (!marker.empty()) {
                first_byte[static_cast<unsigned char>(marker.front())] = true;
            }
        }
    }

    static bool is_text_tag(const std::string & tag) {
        return tag == common_chat_peg_builder::CONTENT || tag == common_chat_peg_builder::REASONING;
    }

    // Whether what runs last in this parser is text up to a marker.
    static bool ends_in_text(const common_peg_arena & arena, common_peg_parser_id id, int depth) {
        if (depth > 32) {
            return false;
        }
        const auto & node = arena.get(id);
        if (std::get_if<common_peg_until_parser>(&node)) {
            return true;
        }
        if (const auto * p = std::get_if<common_peg_sequence_parser>(&node)) {
            return sequence_is_text(arena, p->children, depth);
        }
        if (const auto * p = std::get_if<common_peg_choice_parser>(&node)) {
            return std::all_of(p->children.begin(), p->children.end(),
                               [&](auto child) { return ends_in_text(arena, child, depth + 1); });
        }
        if (const auto * p = std::get_if<common_peg_rule_parser>(&node)) {
            return ends_in_text(arena, p->child, depth + 1);
        }
        if (const auto * p = std::get_if<common_peg_gbnf_parser>(&node)) {
            return ends_in_text(arena, p->child, depth + 1);
        }
        if (const auto * p = std::get_if<common_peg_ac_parser>(&node)) {
            return ends_in_text(arena, p->child, depth + 1);
        }
        if (const auto * p = std::get_if<common_peg_ref_parser>(&node)) {
            return arena.has_rule(p->name) && ends_in_text(arena, arena.get_rule(p->name), depth + 1);
        }
        return is_fixed(node);
    }

    // A sequence is text if each part is: literals, spaces and lookaheads are short and decided
    // by what was read before, so that they do not matter once text runs.
    static bool sequence_is_text(const common_peg_arena & arena, const std::vector<common_peg_parser_id> & parts, int depth) {
        return std::all_of(parts.begin(), parts.end(),
                           [&](auto part) { return ends_in_text(arena, part, depth + 1); });
    }

    static bool is_fixed(const common_peg_parser_variant & node) {
        return std::holds_alternative<common_peg_literal_parser>(node) ||
               std::holds_alternative<common_peg_space_parser>(node) ||
               std::holds_alternative<common_peg_epsilon_parser>(node) ||
               std::holds_alternative<common_peg_any_parser>(node) ||
               std::holds_alternative<common_peg_end_parser>(node) ||
               std::holds_alternative<common_peg_not_parser>(node) ||
               std::holds_alternative<common_peg_and_parser>(node);
    }

    // How much of `text` from `from` on is certainly not part of a marker.
    // `complete` is set when a whole marker was found: then only the parser can say more.
    size_t clear_until(std::string_view text, size_t from, bool & complete) const {
        complete = false;
        for (size_t pos = from; pos < text.size(); ++pos) {
            if (!first_byte[static_cast<unsigned char>(text[pos])]) {
                continue;
            }
            const auto rest = text.substr(pos);
            for (const auto & marker : markers) {
                const auto n = std::min(rest.size(), marker.size());
                if (n > 0 && rest.compare(0, n, marker, 0, n) == 0) {
                    complete = n == marker.size();
                    return pos;
                }
            }
        }
        return text.size();
    }
};

// The length of the longest prefix of `text` that does not end inside a UTF-8 character, or npos
// when there is a byte that is not UTF-8 (which the parser replaces, and so has to see).
size_t utf8_prefix(std::string_view text) {
    size_t pos = 0;
    while (pos < text.size()) {
        const auto lead = static_cast<unsigned char>(text[pos]);
        const size_t n  = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 :
                          lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
        if (n == 0) {
            return std::string_view::npos;
        }
        for (size_t i = 1; i < n; ++i) {
            if (pos + i >= text.size()) {
                return pos;
            }
            if ((static_cast<unsigned char>(text[pos + i]) & 0xC0) != 0x80) {
                return std::string_view::npos;
            }
        }
        pos += n;
    }
    return pos;
}

// ---- one parse ------------------------------------------------------------------------------

enum class Field { none, content, reasoning };

// What the nodes of a parse say about the end of the text.
struct Tail {
    size_t      covered = 0; // nothing after this offset is in the message
    std::string tag;         // of the last tagged node that holds message text
    bool        partial = false;

    bool in_call() const { return tag.compare(0, 4, "tool") == 0; }
    bool in_reasoning() const { return tag == common_chat_peg_builder::REASONING; }
    bool in_content() const { return tag == common_chat_peg_builder::CONTENT; }
};

struct Parsed {
    common_chat_msg message; // role, content, reasoning and calls
    Tail            tail;
    bool            failed   = false;       // the format does not allow this text
    bool            wanting  = false;       // it allows it as the beginning of a longer one
    bool            complete = false;       // the format explains all of the text
    Field           running  = Field::none; // text that goes on at the very end of the input
};

std::unique_ptr<common_chat_peg_mapper> make_mapper(common_chat_format format, common_chat_msg & message) {
    switch (format) {
        case COMMON_CHAT_FORMAT_PEG_GEMMA4:     return std::make_unique<common_chat_peg_gemma4_mapper>(message);
        case COMMON_CHAT_FORMAT_PEG_MINIMAX_M3: return std::make_unique<common_chat_peg_minimax_m3_mapper>(message);
        default:                                return std::make_unique<common_chat_peg_mapper>(message);
    }
}

Tail tail_of(const common_peg_ast_arena & ast, const common_peg_parse_result & result) {
    Tail tail;
    ast.visit(result, [&](const common_peg_ast_node & node) {
        const bool matters = TextMarkers::is_text_tag(node.tag) || node.tag.compare(0, 4, "tool") == 0;
        if (matters && node.end >= tail.covered) {
            tail = { node.end, node.tag, node.is_partial };
        }
    });
    return tail;
}

bool is_blank(std::string_view text) {
    return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// The parsers call themselves for each level of nested JSON, at some kilobytes of stack a level. A
// model that writes brackets for ever must not end the process.
constexpr int deepest_nesting = 200;

bool too_deep(std::string_view text) {
    int depth = 0;
    for (const char c : text) {
        if (c == '[' || c == '{') {
            if (++depth > deepest_nesting) {
                return true;
            }
        } else if ((c == ']' || c == '}') && depth > 0) {
            --depth;
        }
    }
    return false;
}

struct ReplyFormat {
    common_chat_format format = COMMON_CHAT_FORMAT_CONTENT_ONLY;
    std::string        opening; // the generation prompt: what the parsers expect before the reply
    bool               continuation = false;
    common_peg_arena   arena;

    Parsed parse(const std::string & text, bool is_partial) const {
        auto parsed = read(text);
        return is_partial || parsed.complete ? parsed : end(text, std::move(parsed));
    }

  private:
    // The text as the beginning of a reply.
    Parsed read(const std::string & text) const {
        Parsed parsed;
        if (too_deep(text)) {
            parsed.failed = true;
            return parsed;
        }
        // Without tokens: llama.cpp carries them to its parsers, of which none looks at them.
        common_peg_parse_context ctx(opening + text, COMMON_PEG_PARSE_FLAG_LENIENT);
        const auto               result = arena.parse(ctx);

        parsed.message.role = "assistant";
        make_mapper(format, parsed.message)->from_ast(ctx.ast, result);
        parsed.tail         = tail_of(ctx.ast, result);
        parsed.failed       = result.fail();
        parsed.wanting      = result.need_more_input();
        parsed.complete     = result.success() && result.end == ctx.input.size();
        if (parsed.wanting && parsed.tail.partial && parsed.tail.covered == ctx.input.size()) {
            parsed.running = parsed.tail.in_content()   ? Field::content :
                             parsed.tail.in_reasoning() ? Field::reasoning :
                                                          Field::none;
        }
        return parsed;
    }

    // The text as a whole reply, which `parsed` does not explain to its end.
    Parsed end(const std::string & text, Parsed parsed) const {
        if (parsed.failed || parsed.tail.in_call()) {
            // Many templates write a line break before the end of a turn, and models follow.
            auto trimmed = read(text.substr(0, text.find_last_not_of(" \t\r\n") + 1));
            if (trimmed.complete) {
                return trimmed;
            }
        }
        bool failed = parsed.failed;
        if (failed) {
            parsed = read(text.substr(0, longest_beginning(text)));
        }
        const auto from = std::max(parsed.tail.covered, opening.size()) - opening.size();
        hand_back(parsed, std::string_view(text).substr(std::min(from, text.size())), failed);
        return parsed;
    }

    // Nothing follows any more: what was held back as a possible marker is text after all.
    static void hand_back(Parsed & parsed, std::string_view rest, bool failed) {
        if (parsed.tail.in_call()) {
            parsed.complete = !parsed.wanting && is_blank(rest);
            if (!parsed.complete && (failed || !parsed.wanting)) {
                parsed.message.content += rest; // words after the calls
            }
        } else if (parsed.tail.in_reasoning() && !failed) {
            parsed.message.reasoning_content += rest;
            parsed.complete = false;
        } else {
            parsed.message.content += rest;
            parsed.complete = !failed;
        }
    }

    // How much of a text that the format does not allow it does allow as a beginning.
    size_t longest_beginning(const std::string & text) const {
        size_t good = 0;
        size_t bad  = text.size();
        while (good + 1 < bad) {
            const size_t middle = good + (bad - good) / 2;
            (read(text.substr(0, middle)).failed ? bad : good) = middle;
        }
        return good;
    }
};

common_peg_arena content_only() {
    return build_chat_peg_parser([](common_chat_peg_builder & p) { return p.content(p.rest()) + p.end(); });
}

ReplyFormat read_format(const char * parser_json) {
    const json  in = parse_object(parser_json, "parser_json");
    ReplyFormat out;
    const int   format = in.at("format").get<int>();
    if (format < 0 || format >= COMMON_CHAT_FORMAT_COUNT) {
        throw std::invalid_argument("parser_json: format " + std::to_string(format) + " does not exist");
    }
    out.format       = static_cast<common_chat_format>(format);
    out.opening      = text_of(in, "generation_prompt");
    out.continuation = flag(in, "continuation", false);
    const auto arena = text_of(in, "arena");
    if (arena.empty()) {
        out.opening.clear();
        out.arena = content_only();
    } else {
        out.arena = llama_py_arena_read(arena);
    }
    return out;
}

json message_json(const common_chat_msg & message) {
    json out = json::object();
    out["role"]    = "assistant";
    out["content"] = message.content;
    if (!message.reasoning_content.empty()) {
        out["reasoning_content"] = message.reasoning_content;
    }
    if (!message.tool_calls.empty()) {
        json calls = json::array();
        for (const auto & call : message.tool_calls) {
            json function = json::object();
            function["name"]      = call.name;
            function["arguments"] = call.arguments;
            json entry = json::object();
            entry["type"]     = "function";
            entry["function"] = function;
            if (!call.id.empty()) {
                entry["id"] = call.id;
            }
            calls.push_back(entry);
        }
        out["tool_calls"] = calls;
    }
    return out;
}

// ---- what apply answers ---------------------------------------------------------------------

json write_parser(const common_chat_params & params, bool is_continuation) {
    json out = json::object();
    out["format"]            = static_cast<int>(params.format);
    out["generation_prompt"] = params.generation_prompt;
    out["continuation"]      = is_continuation;
    out["arena"]             = params.parser.empty() ? "" : llama_py_arena_write(params.parser);
    return out;
}

json write_delimiters(const common_chat_msg_delimiters & delimiters) {
    json out = json::array();
    for (const auto & each : delimiters.delimiters) {
        out.push_back({
            { "role",      common_chat_role_to_string(each.role) },
            { "delimiter", each.delimiter                        },
        });
    }
    return out;
}

// Whether a reply is content as it stands: no tags but content, no markers, nothing trimmed.
bool is_plain(const ReplyFormat & format) {
    if (format.continuation || !TextMarkers(format.arena).markers.empty()) {
        return false;
    }
    for (size_t id = 0; id < format.arena.size(); ++id) {
        const auto * tag = std::get_if<common_peg_tag_parser>(&format.arena.get(id));
        if (tag != nullptr && tag->tag != common_chat_peg_builder::CONTENT) {
            return false;
        }
    }
    const std::string probe  = "\n <x>{\"y\": [1]}\n ";
    const auto        parsed = format.parse(probe, true);
    return parsed.message.content == probe && parsed.running == Field::content;
}

bool has_tool_calls(const ReplyFormat & format) {
    for (size_t id = 0; id < format.arena.size(); ++id) {
        const auto * tag = std::get_if<common_peg_tag_parser>(&format.arena.get(id));
        if (tag != nullptr && tag->tag == common_chat_peg_builder::TOOL_NAME) {
            return true;
        }
    }
    return false;
}

ReplyFormat format_of(const common_chat_params & params, bool is_continuation) {
    ReplyFormat out;
    out.format       = params.format;
    out.opening      = params.parser.empty() ? "" : params.generation_prompt;
    out.continuation = is_continuation;
    out.arena        = params.parser.empty() ? content_only() : params.parser;
    return out;
}

json write_params(const common_chat_params & params, bool is_continuation) {
    const auto format = format_of(params, is_continuation);

    json out = json::object();
    out["prompt"]             = params.prompt;
    out["generation_prompt"]  = params.generation_prompt;
    out["grammar"]            = params.grammar;
    out["grammar_lazy"]       = params.grammar_lazy;
    write_triggers(out, params.grammar_triggers);
    out["preserved_tokens"]   = strings(params.preserved_tokens);
    out["additional_stops"]   = strings(params.additional_stops);
    out["supports_thinking"]  = params.supports_thinking;
    out["thinking_start_tag"] = params.thinking_start_tag;
    out["thinking_end_tags"]  = strings(params.thinking_end_tags);
    out["message_delimiters"] = write_delimiters(params.message_delimiters);
    out["plain"]              = is_plain(format);
    out["has_tool_calls"]     = has_tool_calls(format);
    out["format"]             = common_chat_format_name(params.format);
    out["parser"]             = write_parser(params, is_continuation);
    return out;
}

// ---- differences between two parses ----------------------------------------------------------

// What was told so far. Only ever grows: text that was told cannot be taken back.
struct Told {
    common_chat_msg    message;
    std::vector<bool>  named; // calls whose name was told

    // The part of `now` that is new, or nothing when `now` does not go on from `before`.
    static std::string_view growth(const std::string & before, const std::string & now) {
        if (now.size() <= before.size() || now.compare(0, before.size(), before) != 0) {
            return {};
        }
        return std::string_view(now).substr(before.size());
    }

    void text(json & out, const char * key, std::string & before, const std::string & now) {
        const auto delta = growth(before, now);
        if (delta.empty()) {
            return;
        }
        json entry = json::object();
        entry[key] = std::string(delta);
        out.push_back(entry);
        before.append(delta);
    }

    void call(json & out, size_t index, const common_chat_tool_call & now, bool certain) {
        if (message.tool_calls.size() <= index) {
            message.tool_calls.resize(index + 1);
            named.resize(index + 1, false);
        }
        auto & before = message.tool_calls[index];
        json   entry  = json::object();
        bool   news   = false;
        entry["tool_call"] = index;
        if (!named[index]) {
            if (now.name.empty() || !(certain || !now.arguments.empty())) {
                return; // the name may still grow
            }
            entry["id"]   = now.id;
            entry["name"] = now.name;
            before.id     = now.id;
            before.name   = now.name;
            named[index]  = true;
            news          = true;
        }
        const auto delta = growth(before.arguments, now.arguments);
        if (!delta.empty()) {
            entry["arguments"] = std::string(delta);
            before.arguments.append(delta);
            news = true;
        }
        if (news) {
            out.push_back(entry);
        }
    }

    void all(json & out, const common_chat_msg & now, bool final) {
        text(out, "reasoning", message.reasoning_content, now.reasoning_content);
        text(out, "content", message.content, now.content);
        for (size_t i = 0; i < now.tool_calls.size(); ++i) {
            call(out, i, now.tool_calls[i], final || i + 1 < now.tool_calls.size());
        }
    }
};

} // namespace

struct llama_py_chat_parser {
    ReplyFormat format;
    TextMarkers markers;
    Told        told;
    std::string text;           // the reply so far
    size_t      parsed    = 0;  // its length at the last parse
    size_t      scanned   = 0;  // while text runs: how much of `text` was told or seen
    Field       running   = Field::none;
    bool        lost      = false; // the format does not allow this reply: wait for its end

    explicit llama_py_chat_parser(ReplyFormat && f) : format(std::move(f)), markers(format.arena) {
        if (format.continuation) {
            // The reader has the prefill already.
            told.message = format.parse("", true).message;
            told.named.assign(told.message.tool_calls.size(), true);
        }
    }

    // Below this many bytes every piece is parsed at once; above, after a growth by 1/64.
    static constexpr size_t parse_always = 512;

    bool parse_due() const {
        return text.size() <= parse_always || (text.size() - parsed) * 64 >= text.size();
    }

    // Tells running text up to the next possible marker. False when the parser has to look.
    bool run_on(json & out) {
        const auto chars = utf8_prefix(std::string_view(text).substr(scanned));
        if (chars == std::string_view::npos) {
            return false;
        }
        bool       complete = false;
        const auto view     = std::string_view(text).substr(0, scanned + chars);
        const auto clear    = markers.clear_until(view, scanned, complete);
        if (complete) {
            return false;
        }
        if (clear > scanned) {
            auto & field = running == Field::content ? told.message.content : told.message.reasoning_content;
            json   entry = json::object();
            entry[running == Field::content ? "content" : "reasoning"] = text.substr(scanned, clear - scanned);
            out.push_back(entry);
            field.append(text, scanned, clear - scanned);
            scanned = clear;
        }
        return true;
    }

    void reparse(json & out, bool final) {
        const auto now = format.parse(text, !final);
        lost           = now.failed && !final;
        if (!lost) {
            told.all(out, now.message, final);
        }
        parsed  = text.size();
        scanned = text.size();
        running = Field::none;
        if (markers.exact && now.running != Field::none && in_step(now)) {
            running = now.running;
        }
        if (final) {
            json entry = json::object();
            entry["complete"] = now.complete && in_step(now);
            out.push_back(entry);
        }
    }

    // Whether what was told is what the parser now sees.
    bool in_step(const Parsed & now) const {
        return told.message.content == now.message.content &&
               told.message.reasoning_content == now.message.reasoning_content &&
               (now.running != Field::content || !now.message.content.empty()) &&
               (now.running != Field::reasoning || !now.message.reasoning_content.empty());
    }

    json feed(std::string_view piece, bool final) {
        text.append(piece);
        json out = json::array();
        if (!final && running != Field::none && run_on(out)) {
            return out;
        }
        if (final || (!lost && (running != Field::none || parse_due()))) {
            reparse(out, final);
        }
        return out;
    }
};

std::string llama_py_render_template(const std::string & source, const common_json & values) {
    return answer_of_renderer(source, values.dump_safe().c_str());
}

jinja::caps llama_py_template_caps(const std::string & source) {
    const auto  answer = json::parse(answer_of_renderer(source, nullptr));
    jinja::caps out;
    out.supports_tools               = flag(answer, "supports_tools", false);
    out.supports_tool_calls          = flag(answer, "supports_tool_calls", false);
    out.supports_system_role         = flag(answer, "supports_system_role", false);
    out.supports_parallel_tool_calls = flag(answer, "supports_parallel_tool_calls", false);
    out.supports_preserve_reasoning  = flag(answer, "supports_preserve_reasoning", false);
    out.supports_reasoning_effort    = flag(answer, "supports_reasoning_effort", false);
    out.supports_string_content      = flag(answer, "supports_string_content", true);
    out.supports_typed_content       = flag(answer, "supports_typed_content", false);
    out.supports_object_arguments    = flag(answer, "supports_object_arguments", false);
    return out;
}

// llama.cpp's own stands beside the engine, which is not compiled.
std::map<std::string, bool> jinja::caps::to_map() const {
    return {
        { "supports_string_content",      supports_string_content      },
        { "supports_typed_content",       supports_typed_content       },
        { "supports_tools",               supports_tools               },
        { "supports_tool_calls",          supports_tool_calls          },
        { "supports_parallel_tool_calls", supports_parallel_tool_calls },
        { "supports_system_role",         supports_system_role         },
        { "supports_preserve_reasoning",  supports_preserve_reasoning  },
        { "supports_reasoning_effort",    supports_reasoning_effort    },
        { "supports_object_arguments",    supports_object_arguments    },
    };
}

extern "C" {

int32_t llama_py_chat_abi_version(void) {
    return LLAMA_PY_CHAT_ABI_VERSION;
}

void llama_py_chat_string_free(char * text) {
    std::free(text);
}

void llama_py_chat_answer(void * answer, const char * text, size_t size) {
    static_cast<std::string *>(answer)->assign(text, size);
}

struct llama_py_chat_templates * llama_py_chat_templates_init(
        const struct llama_model * model,
        const char               * template_text,
        const char               * bos,
        const char               * eos,
        llama_py_chat_renderer     renderer,
        char                    ** error) {
    return guarded(error, [&]() -> llama_py_chat_templates * {
        silence_common_log();
        const RendererOfCall call(renderer);
        const std::string text = template_text != nullptr ? template_text : "";
        if (text.empty() && model == nullptr) {
            throw std::invalid_argument("neither a model nor a template text was given");
        }
        auto out    = std::make_unique<llama_py_chat_templates>();
        out->handle = common_chat_templates_init(model, text, bos != nullptr ? bos : "", eos != nullptr ? eos : "");
        out->source          = common_chat_templates_source(out->handle.get());
        out->source_tool_use = common_chat_templates_source(out->handle.get(), "tool_use");
        return out.release();
    });
}

void llama_py_chat_templates_free(struct llama_py_chat_templates * templates) {
    delete templates;
}

char * llama_py_chat_templates_info(
        const struct llama_py_chat_templates * templates,
        llama_py_chat_renderer                 renderer,
        char                                ** error) {
    return guarded(error, [&]() -> char * {
        const RendererOfCall call(renderer);
        const auto * handle = required(templates, "templates").handle.get();
        json         caps   = json::object();
        for (const auto & entry : common_chat_templates_get_caps(handle)) {
            caps[entry.first] = entry.second;
        }
        json out = json::object();
        out["source"]          = templates->source;
        out["source_tool_use"] = templates->source_tool_use;
        out["explicit"]        = common_chat_templates_was_explicit(handle);
        out["caps"]            = caps;
        bool thinking = false;
        try {
            thinking = common_chat_templates_support_enable_thinking(handle);
        } catch (const std::exception &) {
            // A template that refuses llama.cpp's probe message still renders real ones.
        }
        out["thinking"] = thinking;
        return copy_out(out.dump());
    });
}

char * llama_py_chat_apply(
        const struct llama_py_chat_templates * templates,
        const char                           * inputs_json,
        llama_py_chat_renderer                 renderer,
        char                                ** error) {
    return guarded(error, [&]() -> char * {
        const RendererOfCall call(renderer);
        const auto * handle = required(templates, "templates").handle.get();
        const auto   inputs = read_inputs(parse_object(inputs_json, "inputs_json"), handle);
        if (inputs.messages.empty() && inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE) {
            throw std::invalid_argument("there is no final message to continue");
        }
        const auto params = common_chat_templates_apply(handle, inputs);
        return copy_out(write_params(params, inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE).dump_safe());
    });
}

struct llama_py_chat_parser * llama_py_chat_parser_init(const char * parser_json, char ** error) {
    return guarded(error, [&]() -> llama_py_chat_parser * {
        silence_common_log();
        return std::make_unique<llama_py_chat_parser>(read_format(parser_json)).release();
    });
}

void llama_py_chat_parser_free(struct llama_py_chat_parser * parser) {
    delete parser;
}

char * llama_py_chat_parse(
        const struct llama_py_chat_parser * parser,
        const char                        * text,
        size_t                              len,
        bool                                is_partial,
        char                             ** error) {
    return guarded(error, [&]() -> char * {
        const auto & format = required(parser, "parser").format;
        const auto   parsed = format.parse(std::string(len > 0 ? &required(text, "text") : "", len), is_partial);
        return copy_out(message_json(parsed.message).dump_safe());
    });
}

char * llama_py_chat_parser_feed(
        struct llama_py_chat_parser * parser,
        const char                  * text,
        size_t                        len,
        bool                          final,
        char                       ** error) {
    return guarded(error, [&]() -> char * {
        auto &     self  = required(parser, "parser");
        const auto piece = len > 0 ? std::string_view(&required(text, "text"), len) : std::string_view();
        const auto news  = self.feed(piece, final);
        return news.empty() ? nullptr : copy_out(news.dump_safe());
    });
}

char * llama_py_chat_schema_to_grammar(const char * schema_json, char ** error) {
    return guarded(error, [&]() -> char * {
        silence_common_log();
        const json schema = json::parse(&required(schema_json, "schema_json"));
        return copy_out(json_schema_to_grammar(schema, /* force_gbnf = */ true));
    });
}

} // extern "C"

// See llama_py_arena.h. Only the public interface of an arena is used.

#include "llama_py_arena.h"

#include "json.h"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace llama_py_arena {

using json = common_json;
using Node = common_peg_parser_variant;
using Id   = common_peg_parser_id;

// ---- to JSON --------------------------------------------------------------------------------

json node(const char * type) {
    json out    = json::object();
    out["type"] = type;
    return out;
}

template <typename Parser> json around(const char * type, const Parser & parser) {
    json out     = node(type);
    out["child"] = parser.child;
    return out;
}

template <typename Parser> json list(const char * type, const Parser & parser) {
    json out        = node(type);
    out["children"] = parser.children;
    return out;
}

template <typename Parser> void write_counts(json & out, const Parser & parser) {
    out["min_count"] = parser.min_count;
    out["max_count"] = parser.max_count;
}

// One function for each kind of node: a kind that is new in llama.cpp does not compile.
struct Writer {
    json operator()(const common_peg_epsilon_parser &) const { return node("epsilon"); }
    json operator()(const common_peg_start_parser &) const { return node("start"); }
    json operator()(const common_peg_end_parser &) const { return node("end"); }
    json operator()(const common_peg_any_parser &) const { return node("any"); }
    json operator()(const common_peg_space_parser &) const { return node("space"); }
    json operator()(const common_peg_sequence_parser & p) const { return list("sequence", p); }
    json operator()(const common_peg_choice_parser & p) const { return list("choice", p); }
    json operator()(const common_peg_and_parser & p) const { return around("and", p); }
    json operator()(const common_peg_not_parser & p) const { return around("not", p); }
    json operator()(const common_peg_atomic_parser & p) const { return around("atomic", p); }

    json operator()(const common_peg_literal_parser & p) const {
        json out       = node("literal");
        out["literal"] = p.literal;
        return out;
    }

    json operator()(const common_peg_repetition_parser & p) const {
        json out = around("repetition", p);
        write_counts(out, p);
        return out;
    }

    json operator()(const common_peg_chars_parser & p) const {
        json ranges = json::array();
        for (const auto & range : p.ranges) {
            ranges.push_back({ { "start", range.start }, { "end", range.end } });
        }
        json out       = node("chars");
        out["pattern"] = p.pattern;
        out["ranges"]  = ranges;
        out["negated"] = p.negated;
        write_counts(out, p);
        return out;
    }

    json operator()(const common_peg_string_parser & p) const {
        json out         = node("string");
        out["delimiter"] = std::string(1, p.delimiter);
        return out;
    }

    json operator()(const common_peg_until_parser & p) const {
        json out          = node("until");
        out["delimiters"] = p.delimiters;
        return out;
    }

    json operator()(const common_peg_schema_parser & p) const {
        json out    = around("schema", p);
        out["name"] = p.name;
        out["raw"]  = p.raw;
        return out;
    }

    json operator()(const common_peg_rule_parser & p) const {
        json out       = around("rule", p);
        out["name"]    = p.name;
        out["trigger"] = p.trigger;
        return out;
    }

    json operator()(const common_peg_ref_parser & p) const {
        json out    = node("ref");
        out["name"] = p.name;
        return out;
    }

    json operator()(const common_peg_tag_parser & p) const {
        json out   = around("tag", p);
        out["tag"] = p.tag;
        return out;
    }

    json operator()(const common_peg_gbnf_parser & p) const {
        json out       = around("gbnf", p);
        out["grammar"] = p.grammar;
        return out;
    }

    json operator()(const common_peg_ac_parser & p) const {
        json out          = around("ac", p);
        out["delimiters"] = p.delimiters;
        return out;
    }
};

// ---- from JSON ------------------------------------------------------------------------------

Id child_of(const json & in) {
    return in.at("child").get<Id>();
}

std::string text_at(const json & in, const char * key) {
    return in.at(key).get<std::string>();
}

std::vector<std::string> texts_at(const json & in, const char * key) {
    return in.at(key).get<std::vector<std::string>>();
}

Node read_repetition(const json & in) {
    return common_peg_repetition_parser{ child_of(in), in.at("min_count").get<int>(), in.at("max_count").get<int>() };
}

Node read_chars(const json & in) {
    common_peg_chars_parser out;
    out.pattern   = text_at(in, "pattern");
    out.negated   = in.at("negated").get<bool>();
    out.min_count = in.at("min_count").get<int>();
    out.max_count = in.at("max_count").get<int>();
    for (const auto & range : in.at("ranges")) {
        out.ranges.push_back({ range.at("start").get<uint32_t>(), range.at("end").get<uint32_t>() });
    }
    return out;
}

Node read_string(const json & in) {
    const auto delimiter = text_at(in, "delimiter");
    if (delimiter.size() != 1) {
        throw std::invalid_argument("parser_json: a string's delimiter is not one character");
    }
    return common_peg_string_parser{ delimiter.front() };
}

Node read_schema(const json & in) {
    common_peg_schema_parser out;
    out.child = child_of(in);
    out.name  = text_at(in, "name");
    out.raw   = in.at("raw").get<bool>();
    return out;
}

// A rule by its name. llama.cpp keeps the names of rules to itself, so the node is read as a
// sequence of one: the rule.
Node read_ref(const json & in, const json & rules) {
    return common_peg_sequence_parser{ { rules.at(text_at(in, "name")).get<Id>() } };
}

Node read_leaf(const json & in, const std::string & type) {
    if (type == "epsilon") { return common_peg_epsilon_parser{}; }
    if (type == "start")   { return common_peg_start_parser{}; }
    if (type == "end")     { return common_peg_end_parser{}; }
    if (type == "any")     { return common_peg_any_parser{}; }
    if (type == "space")   { return common_peg_space_parser{}; }
    if (type == "chars")   { return read_chars(in); }
    if (type == "string")  { return read_string(in); }
    if (type == "literal") { return common_peg_literal_parser{ text_at(in, "literal") }; }
    if (type == "until")   { return common_peg_until_parser{ texts_at(in, "delimiters") }; }
    throw std::invalid_argument("parser_json: a node of type '" + type + "' does not exist");
}

Node read_node(const json & in, const json & rules) {
    const auto type = text_at(in, "type");
    if (type == "sequence")   { return common_peg_sequence_parser{ in.at("children").get<std::vector<Id>>() }; }
    if (type == "choice")     { return common_peg_choice_parser{ in.at("children").get<std::vector<Id>>() }; }
    if (type == "repetition") { return read_repetition(in); }
    if (type == "and")        { return common_peg_and_parser{ child_of(in) }; }
    if (type == "not")        { return common_peg_not_parser{ child_of(in) }; }
    if (type == "atomic")     { return common_peg_atomic_parser{ child_of(in) }; }
    if (type == "schema")     { return read_schema(in); }
    if (type == "rule")       { return common_peg_rule_parser{ text_at(in, "name"), child_of(in), in.at("trigger").get<bool>() }; }
    if (type == "tag")        { return common_peg_tag_parser{ child_of(in), text_at(in, "tag") }; }
    if (type == "gbnf")       { return common_peg_gbnf_parser{ child_of(in), text_at(in, "grammar") }; }
    if (type == "ac")         { return common_peg_ac_parser{ child_of(in), texts_at(in, "delimiters") }; }
    if (type == "ref")        { return read_ref(in, rules); }
    return read_leaf(in, type);
}

// An arena with this many nodes, which are then replaced.
common_peg_arena placeholders(size_t count) {
    return build_peg_parser([count](common_peg_parser_builder & p) {
        auto first = p.eps();
        for (size_t i = 1; i < count; ++i) {
            p.eps();
        }
        return first;
    });
}

} // namespace llama_py_arena

std::string llama_py_arena_write(const common_peg_arena & arena) {
    using namespace llama_py_arena;
    json nodes = json::array();
    json rules = json::object();
    for (Id id = 0; id < arena.size(); ++id) {
        nodes.push_back(std::visit(Writer(), arena.get(id)));
        const auto * rule = std::get_if<common_peg_rule_parser>(&arena.get(id));
        if (rule != nullptr && arena.has_rule(rule->name)) {
            rules[rule->name] = arena.get_rule(rule->name);
        }
    }
    json out       = json::object();
    out["parsers"] = nodes;
    out["rules"]   = rules;
    out["root"]    = arena.root();
    return out.dump();
}

common_peg_arena llama_py_arena_read(const std::string & text) {
    using namespace llama_py_arena;
    const json   in    = json::parse(text);
    const auto & nodes = in.at("parsers");
    const auto & rules = in.at("rules");
    const auto   root  = in.at("root").get<Id>();
    if (root >= nodes.size()) {
        throw std::invalid_argument("parser_json: node " + std::to_string(root) + " does not exist");
    }
    auto arena = placeholders(nodes.size());
    for (Id id = 0; id < nodes.size(); ++id) {
        arena.get(id) = read_node(nodes.at(id), rules);
    }
    arena.set_root(root);
    return arena;
}

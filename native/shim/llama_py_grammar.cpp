// The implementation of llama_py_grammar.h: see there for the contract.
//
// llama.cpp keeps a grammar's state as a set of stacks, each a way in which the text so far can be
// read; the top of a stack is what the next character has to match. Its own functions for them have
// no limit, so that they are written anew here, on the same state.

#include "llama_py_grammar.h"

#include "llama-grammar.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Element = llama_grammar_element;
using Stack   = llama_grammar_stack;
using Stacks  = llama_grammar_stacks;
using Text    = std::pair<std::vector<uint32_t>, llama_partial_utf8>;

// The beginning of what llama.cpp's grammar sampler holds (llama-sampler.cpp).
struct sampler_context {
    const llama_vocab * vocab;
    std::string         text;
    std::string         root;
    llama_grammar     * grammar;
};

struct too_much : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct misfit : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Budget {
  public:
    explicit Budget(int64_t most) : left(most) {}

    void spend(size_t steps) {
        left -= static_cast<int64_t>(steps);
        if (left < 0) {
            throw too_much("the text can be read in too many ways");
        }
    }

  private:
    int64_t left;
};

llama_grammar & grammar_of(llama_sampler * sampler) {
    if (sampler == nullptr || std::strcmp(llama_sampler_name(sampler), "grammar") != 0) {
        throw std::invalid_argument("this is no grammar sampler");
    }
    auto * grammar = static_cast<sampler_context *>(sampler->ctx)->grammar;
    if (grammar == nullptr) {
        throw std::invalid_argument("the grammar sampler has no grammar");
    }
    return *grammar;
}

// ---- characters ------------------------------------------------------------------------------

std::string piece_of(const llama_vocab * vocab, llama_token token) {
    char buffer[64];
    int32_t size = llama_token_to_piece(vocab, token, buffer, sizeof(buffer), 0, true);
    if (size >= 0) {
        return std::string(buffer, static_cast<size_t>(size));
    }
    std::string text(static_cast<size_t>(-size), '\0');
    size = llama_token_to_piece(vocab, token, text.data(), static_cast<int32_t>(text.size()), 0, true);
    text.resize(static_cast<size_t>(std::max(size, 0)));
    return text;
}

// Code points, a 0 behind them, and what is left over of the last one. As llama.cpp decodes.
Text decode(const std::string & bytes, llama_partial_utf8 start) {
    static const int lengths[] = {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 3, 4};
    std::vector<uint32_t> out;
    out.reserve(bytes.size() + 1);
    const char * at    = bytes.c_str();
    uint32_t     value = start.value;
    int          left  = start.n_remain;
    for (; *at != 0 && left > 0; ++at, --left) {
        const auto byte = static_cast<uint8_t>(*at);
        if ((byte >> 6) != 2) {
            return {{0}, {0, -1}};
        }
        value = (value << 6) + (byte & 0x3F);
    }
    if (start.n_remain > 0 && left == 0) {
        out.push_back(value);
    }
    while (*at != 0) {
        const auto first = static_cast<uint8_t>(*at++);
        left = lengths[first >> 4] - 1;
        if (left < 0) {
            return {{0}, {0, left}};
        }
        value = first & ((1 << (7 - left)) - 1);
        for (; *at != 0 && left > 0; ++at, --left) {
            value = (value << 6) + (static_cast<uint8_t>(*at) & 0x3F);
        }
        if (left == 0) {
            out.push_back(value);
        }
    }
    out.push_back(0);
    return {std::move(out), {value, left}};
}

bool ends(const Element * at) {
    return at->type == LLAMA_GRETYPE_END || at->type == LLAMA_GRETYPE_ALT;
}

bool is_token(const Element * at) {
    return at->type == LLAMA_GRETYPE_TOKEN || at->type == LLAMA_GRETYPE_TOKEN_NOT;
}

bool fits_token(const Element * at, llama_token token) {
    return (at->value == static_cast<uint32_t>(token)) == (at->type == LLAMA_GRETYPE_TOKEN);
}

// Whether any code point from low to high is named in the class at `at`; moves `at` behind it.
bool names(const Element *& at, uint32_t low, uint32_t high) {
    bool found = false;
    do {
        if (at[1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER) {
            found = found || (at->value <= high && low <= at[1].value);
            at += 2;
        } else {
            found = found || at->type == LLAMA_GRETYPE_CHAR_ANY || (low <= at->value && at->value <= high);
            at += 1;
        }
    } while (at->type == LLAMA_GRETYPE_CHAR_ALT);
    return found;
}

bool fits_char(const Element * at, uint32_t code) {
    const bool wanted = at->type != LLAMA_GRETYPE_CHAR_NOT;
    return names(at, code, code) == wanted;
}

bool fits_partial(const Element * at, llama_partial_utf8 partial) {
    if (partial.n_remain < 0 || (partial.n_remain == 1 && partial.value < 2)) {
        return false;
    }
    uint32_t low  = partial.value << (partial.n_remain * 6);
    uint32_t high = low | ((1u << (partial.n_remain * 6)) - 1);
    if (low == 0) {
        low = partial.n_remain == 2 ? 1 << 11 : partial.n_remain == 3 ? 1 << 16 : 0;
    }
    const bool wanted = at->type != LLAMA_GRETYPE_CHAR_NOT;
    return names(at, low, high) == wanted;
}

// ---- stacks ----------------------------------------------------------------------------------

// Adds the stacks that `stack` stands for, each with a character, a class or a token on top.
void expand(const llama_grammar_rules & rules, Stack stack, std::set<Stack> & out, Budget & budget) {
    if (stack.empty() || stack.back()->type != LLAMA_GRETYPE_RULE_REF) {
        budget.spend(24 + 2 * stack.size());
        out.insert(std::move(stack));
        return;
    }
    std::set<Stack>    seen;
    std::vector<Stack> todo{std::move(stack)};
    while (!todo.empty()) {
        budget.spend(160 + 6 * todo.back().size());
        auto [entry, is_new] = seen.insert(std::move(todo.back()));
        todo.pop_back();
        if (!is_new) {
            continue;
        }
        if (entry->empty() || entry->back()->type != LLAMA_GRETYPE_RULE_REF) {
            out.insert(*entry);
            continue;
        }
        const Element * top = entry->back();
        const Element * at  = rules[top->value].data();
        while (true) {
            Stack next(entry->begin(), entry->end() - 1);
            if (!ends(top + 1)) {
                next.push_back(top + 1);
            }
            if (!ends(at)) {
                next.push_back(at);
            }
            todo.push_back(std::move(next));
            while (!ends(at)) {
                ++at;
            }
            if (at->type == LLAMA_GRETYPE_END) {
                break;
            }
            ++at;
        }
    }
}

// The stacks after whatever is on top of this one was read.
void advance(const llama_grammar_rules & rules, const Stack & stack, std::set<Stack> & out, Budget & budget) {
    const Element * at = stack.back();
    if (is_token(at)) {
        ++at;
    } else {
        names(at, 0, 0);
    }
    Stack next(stack.begin(), stack.end() - 1);
    if (!ends(at)) {
        next.push_back(at);
    }
    expand(rules, std::move(next), out, budget);
}

// ---- candidates ------------------------------------------------------------------------------

struct Candidate {
    llama_token         token;
    size_t              index;
    const uint32_t    * codes;
    llama_partial_utf8  partial;
    bool                fits = false;
};

using Refs = std::vector<Candidate *>;

// With more stacks than this it pays to sort the candidates by their next character.
constexpr size_t few_stacks = 4;

// Marks the candidates whose characters fit one of the stacks.
class Marker {
  public:
    Marker(const llama_grammar_rules & rules, Budget & budget) : rules(rules), budget(budget) {}

    // Looks at the characters from `depth` on. Changes the order of `open`.
    template <typename Set> void mark(const Set & stacks, size_t depth, Refs & open) {
        const bool sorted = stacks.size() > few_stacks;
        if (sorted) {
            std::sort(open.begin(), open.end(), [depth](const Candidate * a, const Candidate * b) {
                return a->codes[depth] < b->codes[depth];
            });
            budget.spend(8 * open.size());
        }
        // Ways to go on, and what leads there: what has become the same is followed once.
        std::map<std::set<Stack>, Refs> groups;
        for (const auto & stack : stacks) {
            budget.spend(4);
            if (stack.empty() || is_token(stack.back())) {
                mark_at_end(stack, depth, open);
                continue;
            }
            Refs going = going_on(stack.back(), depth, open, sorted);
            if (going.empty()) {
                continue;
            }
            std::set<Stack> next;
            advance(rules, stack, next, budget);
            budget.spend(8 * next.size());
            if (goes_straight_on(stack.back())) {
                mark(next, depth + 1, going);
            } else {
                auto & group = groups[std::move(next)];
                group.insert(group.end(), going.begin(), going.end());
            }
        }
        for (auto & [next, going] : groups) {
            std::sort(going.begin(), going.end());
            going.erase(std::unique(going.begin(), going.end()), going.end());
            going.erase(std::remove_if(going.begin(), going.end(), [](const Candidate * c) { return c->fits; }),
                        going.end());
            if (!going.empty()) {
                mark(next, depth + 1, going);
            }
        }
    }

  private:
    const llama_grammar_rules & rules;
    Budget                    & budget;

    void mark_at_end(const Stack & stack, size_t depth, const Refs & open) {
        budget.spend(open.size());
        for (auto * candidate : open) {
            if (candidate->codes[depth] == 0) {
                candidate->fits = candidate->fits || candidate->partial.n_remain == 0;
            } else if (!stack.empty() && depth == 0 && fits_token(stack.back(), candidate->token)) {
                // A token whose first characters were read already is not that token any more.
                candidate->fits = true;
            }
        }
    }

    // Whether the same text follows in the same sequence: no other stack becomes the same.
    static bool goes_straight_on(const Element * top) {
        names(top, 0, 0);
        return !ends(top) && top->type != LLAMA_GRETYPE_RULE_REF;
    }

    // Marks those that are at their end, and returns those that `top` fits and that go on.
    Refs going_on(const Element * top, size_t depth, const Refs & open, bool sorted) {
        Refs going;
        if (!sorted || !is_one_character(top)) {
            look(top, depth, open.begin(), open.end(), going);
            return going;
        }
        const auto below = [depth](const Candidate * c, uint32_t code) { return c->codes[depth] < code; };
        const auto ended = std::lower_bound(open.begin(), open.end(), 1u, below);
        look(top, depth, open.begin(), ended, going);
        if (top->value != 0) {
            const auto first = std::lower_bound(ended, open.end(), top->value, below);
            const auto last  = std::lower_bound(first, open.end(), top->value + 1, below);
            look(top, depth, first, last, going);
        }
        return going;
    }

    static bool is_one_character(const Element * top) {
        return top->type == LLAMA_GRETYPE_CHAR && top[1].type != LLAMA_GRETYPE_CHAR_ALT &&
               top[1].type != LLAMA_GRETYPE_CHAR_RNG_UPPER;
    }

    void look(
            const Element      * top,
            size_t               depth,
            Refs::const_iterator first,
            Refs::const_iterator last,
            Refs               & going) {
        budget.spend(static_cast<size_t>(last - first));
        for (; first != last; ++first) {
            Candidate & candidate = **first;
            if (candidate.fits) {
                continue;
            }
            const uint32_t code = candidate.codes[depth];
            if (code != 0 && fits_char(top, code)) {
                going.push_back(&candidate);
            } else if (code == 0) {
                candidate.fits = candidate.partial.n_remain == 0 || fits_partial(top, candidate.partial);
            }
        }
    }
};

bool may_end(const llama_grammar & grammar) {
    return std::any_of(grammar.stacks.begin(), grammar.stacks.end(), [](const Stack & s) { return s.empty(); });
}

void apply(const llama_grammar & grammar, llama_token_data_array & data, Budget & budget) {
    if (grammar.awaiting_trigger) {
        return;
    }
    const bool             end = may_end(grammar);
    std::vector<Text>      texts;
    std::vector<Candidate> candidates;
    std::vector<size_t>    rejected;
    texts.reserve(data.size);
    candidates.reserve(data.size);
    budget.spend(data.size);
    for (size_t i = 0; i < data.size; ++i) {
        const llama_token token = data.data[i].id;
        if (llama_vocab_is_eog(grammar.vocab, token)) {
            if (!end) {
                rejected.push_back(i);
            }
            continue;
        }
        const std::string piece = piece_of(grammar.vocab, token);
        if (piece.empty() || piece[0] == 0) {
            rejected.push_back(i);
            continue;
        }
        texts.push_back(decode(piece, grammar.partial_utf8));
        candidates.push_back({token, i, texts.back().first.data(), texts.back().second, false});
    }
    Refs open;
    open.reserve(candidates.size());
    for (auto & candidate : candidates) {
        open.push_back(&candidate);
    }
    Marker(grammar.rules, budget).mark(grammar.stacks, 0, open);
    for (const auto & candidate : candidates) {
        if (!candidate.fits) {
            rejected.push_back(candidate.index);
        }
    }
    for (const size_t i : rejected) {
        data.data[i].logit = -INFINITY;
    }
}

void accept(llama_grammar & grammar, llama_token token, Budget & budget) {
    if (llama_vocab_is_eog(grammar.vocab, token)) {
        if (!may_end(grammar)) {
            throw misfit("the reply ends before the grammar does");
        }
        return;
    }
    const std::string piece   = piece_of(grammar.vocab, token);
    const Text        decoded = decode(piece, grammar.partial_utf8);
    std::set<Stack>   result;
    std::set<Stack>   current;
    for (const auto & stack : grammar.stacks) {
        if (stack.empty()) {
            continue;
        }
        if (!is_token(stack.back())) {
            current.insert(stack);
        } else if (fits_token(stack.back(), token)) {
            advance(grammar.rules, stack, result, budget);
        }
    }
    for (const uint32_t * code = decoded.first.data(); *code != 0; ++code) {
        std::set<Stack> next;
        for (const auto & stack : current) {
            budget.spend(1 + stack.size());
            if (!stack.empty() && !is_token(stack.back()) && fits_char(stack.back(), *code)) {
                advance(grammar.rules, stack, next, budget);
            }
        }
        current = std::move(next);
    }
    result.insert(current.begin(), current.end());
    if (result.empty()) {
        throw misfit("the grammar does not go on with " + piece);
    }
    grammar.stacks.assign(result.begin(), result.end());
    grammar.partial_utf8 = decoded.second;
}

template <typename Body> int32_t counted(char ** error, Body && body) noexcept {
    const auto report = [&](const char * text, int32_t code) {
        if (error != nullptr) {
            *error = static_cast<char *>(std::malloc(std::strlen(text) + 1));
            if (*error != nullptr) {
                std::strcpy(*error, text);
            }
        }
        return code;
    };
    if (error != nullptr) {
        *error = nullptr;
    }
    try {
        body();
        return LLAMA_PY_GRAMMAR_OK;
    } catch (const too_much & e) {
        return report(e.what(), LLAMA_PY_GRAMMAR_TOO_MUCH);
    } catch (const std::bad_alloc &) {
        return report("out of memory", LLAMA_PY_GRAMMAR_TOO_MUCH);
    } catch (const std::exception & e) {
        return report(e.what(), LLAMA_PY_GRAMMAR_MISFIT);
    } catch (...) {
        return report("an error that is no C++ exception", LLAMA_PY_GRAMMAR_MISFIT);
    }
}

} // namespace

extern "C" {

int32_t llama_py_grammar_apply(
        struct llama_sampler          * grammar,
        struct llama_token_data_array * candidates,
        int64_t                         most,
        char                         ** error) {
    return counted(error, [&] {
        Budget budget(most);
        apply(grammar_of(grammar), *candidates, budget);
    });
}

int32_t llama_py_grammar_accept(struct llama_sampler * grammar, int32_t token, int64_t most, char ** error) {
    return counted(error, [&] {
        auto & state = grammar_of(grammar);
        if (state.awaiting_trigger) {
            llama_sampler_accept(grammar, token);
            return;
        }
        Budget budget(most);
        accept(state, token, budget);
    });
}

int32_t llama_py_grammar_check_trigger(const char * pattern, char ** error) {
    return counted(error, [&] { std::regex{std::string(pattern)}; });
}

} // extern "C"

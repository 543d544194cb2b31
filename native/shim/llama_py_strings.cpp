#include "llama_py_strings.h"

#include <algorithm>
#include <exception>
#include <set>
#include <string_view>
#include <vector>

namespace {

// A cursor over the strings. What would end behind the data is not there.
struct strings {
    const char * data;
    uint64_t     size, at, left;

    bool next(std::string_view & text) {
        if (left == 0 || at > size || size - at < 8) {
            return false;
        }
        uint64_t length = 0;
        for (int byte = 7; byte >= 0; --byte) {
            length = length << 8 | (unsigned char) data[at + byte];
        }
        if (length > size - at - 8) {
            return false;
        }
        text = { data + at + 8, (size_t) length };
        at += 8 + length;
        --left;
        return true;
    }
};

// A token as llama.cpp's vocabulary sees it.
std::string_view up_to_nul(std::string_view text) {
    return text.substr(0, text.find('\0'));
}

uint64_t hash_of(std::string_view text) { // FNV-1a
    uint64_t hash = 0xcbf29ce484222325;
    for (const char each : text) {
        hash = (hash ^ (unsigned char) each) * 0x100000001b3;
    }
    return hash;
}

// Two hexadecimal digits, as llama.cpp reads them: whatever they are.
int hex(unsigned char high, unsigned char low) {
    const auto digit = [](unsigned char each) {
        return each >= 'a' ? each - 'a' + 10 : each - '0';
    };
    return (digit(high) * 16 + digit(low)) & 0xff;
}

// The byte that a string of an RWKV vocabulary begins with, and whether it is all of it; -1 if it
// spells nothing.
int first_byte(std::string_view text, bool & alone) {
    if (text.empty()) {
        return -1;
    }
    if (text[0] != '\\') {
        alone = text.size() == 1;
        return (unsigned char) text[0];
    }
    const size_t size = text.size() > 1 && text[1] == 'x' ? 4 : 2;
    if (text.size() < size) {
        return -1;
    }
    alone = text.size() == size;
    if (size == 4) {
        return hex(text[2], text[3]);
    }
    switch (text[1]) {
        case 't': return '\t';
        case 'n': return '\n';
        case 'r': return '\r';
        default:  return (unsigned char) text[1];
    }
}

// Most hashes occur once; only strings with one of the others are compared. A file that was made to
// have them all alike costs no more than a sorted set of its strings.
int64_t first_twice(const strings & all) {
    std::vector<uint64_t> hashes;
    hashes.reserve(std::min(all.left, all.size / 8));
    strings once = all, again = all;
    for (std::string_view text; once.next(text);) {
        if (text = up_to_nul(text); !text.empty()) {
            hashes.push_back(hash_of(text));
        }
    }
    std::sort(hashes.begin(), hashes.end());
    std::vector<uint64_t> repeated;
    for (size_t i = 1; i < hashes.size(); ++i) {
        if (hashes[i] == hashes[i - 1]) {
            repeated.push_back(hashes[i]);
        }
    }
    if (repeated.empty()) {
        return -1;
    }
    std::set<std::string_view> seen;
    for (std::string_view text; again.next(text);) {
        const uint64_t place = again.at - 8 - text.size();
        text = up_to_nul(text);
        if (text.empty() || !std::binary_search(repeated.begin(), repeated.end(), hash_of(text))) {
            continue;
        }
        if (!seen.insert(text).second) {
            return (int64_t) place;
        }
    }
    return -1;
}

} // namespace

extern "C" int64_t llama_py_strings_end(
        const void * data, uint64_t size, uint64_t at, uint64_t count) {
    strings all { (const char *) data, size, at, count };
    for (std::string_view text; all.next(text);) {
    }
    return all.left == 0 ? (int64_t) all.at : -1;
}

extern "C" int64_t llama_py_strings_twice(
        const void * data, uint64_t size, uint64_t at, uint64_t count) {
    try {
        return first_twice({ (const char *) data, size, at, count });
    } catch (const std::exception &) {  // no memory for the hashes
        return -2;
    }
}

extern "C" int32_t llama_py_strings_unspelled(
        const void * data, uint64_t size, uint64_t at, uint64_t count) {
    bool begun[256] = {}, by_itself[256] = {};
    strings all { (const char *) data, size, at, count };
    for (std::string_view text; all.next(text);) {
        bool alone = false;
        const int byte = first_byte(text, alone);
        if (byte >= 0) {
            begun[byte] = true;
            by_itself[byte] |= alone;
        }
    }
    for (int byte = 0; byte < 256; ++byte) {
        if (begun[byte] && !by_itself[byte]) {
            return byte;
        }
    }
    return -1;
}

// A reply's parser as JSON text, and back.
//
// llama.cpp describes how the replies of a template are read with a parser that consists of nodes
// (an arena). Python reads those nodes, changes some of them, and gives them back.
#ifndef LLAMA_PY_ARENA_H
#define LLAMA_PY_ARENA_H

#include "peg-parser.h"

#include <string>

// The text is an object:
//   parsers  array of nodes, each {"type": ..., and what the type has}; a node's number is its place
//   rules    object: name of a rule -> its node
//   root     the node that is the whole reply
std::string llama_py_arena_write(const common_peg_arena & arena);

// Throws an exception if the text describes no parser. What comes back parses, but has no schemas:
// no grammar can be built from it.
common_peg_arena llama_py_arena_read(const std::string & text);

#endif // LLAMA_PY_ARENA_H

// Included first into ggml's amx/mmq.cpp when GCC compiles it; see rule.cmake.
//
// The instruction ldtilecfg reads 64 bytes. GCC's own _tile_loadconfig (seen with GCC 12) tells the
// optimizer of the first 8 only: the others are taken for unread, what is stored to them is dropped,
// and the tiles are configured with no rows and no columns. The first instruction that uses one then
// ends the process (SIGILL), on every CPU that has AMX and on no other. No compiler flag helps.
//
// It can go when each GCC that we build with names all 64 bytes in its amxtileintrin.h, or when
// llama.cpp no longer relies on it; test_amx_tile_config.py says whether that is so.
#ifndef LLAMA_PY_AMX_TILE_CONFIG_H
#define LLAMA_PY_AMX_TILE_CONFIG_H

#if defined(__x86_64__) && defined(__AMX_TILE__)
#include <immintrin.h>

#undef _tile_loadconfig
#define _tile_loadconfig(config) \
    __asm__ volatile("ldtilecfg\t%X0" ::"m"(*(const char(*)[64])(config)))
#endif

#endif

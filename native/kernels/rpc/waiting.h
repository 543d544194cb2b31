// How long a client waits for a server that says nothing (see rule.cmake). Included by the corrected transport.cpp.
//
// A server that computes says nothing either, for as long as a prompt takes. One that serves several clients can be
// asked over a second connection whether it is there: while it answers, the wait goes on. Another one gets longer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#ifndef _WIN32
#  include <cerrno>
#  include <fcntl.h>
#  include <poll.h>
#  include <sys/time.h>
#endif
#ifdef MSG_NOSIGNAL
#  define LLAMA_PY_NO_SIGNAL MSG_NOSIGNAL
#else
#  define LLAMA_PY_NO_SIGNAL 0
#endif

// Seconds; set by the Python side.
double llama_py_patience();
// A server that does not answer others may be silent for so many times as long.
static constexpr double LLAMA_PY_SILENT = 10.0;

using llama_py_clock = std::chrono::steady_clock;

// Lets calls return every now and then, or after so many seconds; no limit on Windows.
static void llama_py_limit_waiting(sockfd_t fd, double seconds) {
#ifndef _WIN32
    timeval limit = {};
    limit.tv_sec  = (time_t) seconds;
    limit.tv_usec = (suseconds_t) ((seconds - (double) limit.tv_sec) * 1e6);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
#else
    (void) fd;
    (void) seconds;
#endif
}

#ifndef _WIN32
// Whether the server at the other end answers a HELLO on a new connection within so many seconds.
static bool llama_py_answers(sockfd_t fd, double seconds) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, (sockaddr *) &peer, &size) < 0) {
        return false;
    }
    const int probe = socket(AF_INET, SOCK_STREAM, 0);
    if (probe < 0) {
        return true;  // that says nothing about the server
    }
    fcntl(probe, F_SETFL, fcntl(probe, F_GETFL, 0) | O_NONBLOCK);
    const auto end = llama_py_clock::now() + std::chrono::duration<double>(seconds);
    const auto ready = [&](short what) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - llama_py_clock::now()).count();
        pollfd one = { probe, what, 0 };
        return left > 0 && poll(&one, 1, (int) left) == 1 && (one.revents & what) != 0;
    };
    // command, size of what follows, what this client can do (nothing)
    uint8_t hello[1 + 8 + RPC_CONN_CAPS_SIZE] = { 14, RPC_CONN_CAPS_SIZE };
    uint8_t first;
    const bool connected = connect(probe, (sockaddr *) &peer, size) == 0 || errno == EINPROGRESS;
    const bool answered = connected && ready(POLLOUT)
        && send(probe, hello, sizeof(hello), LLAMA_PY_NO_SIGNAL) == (ssize_t) sizeof(hello)
        && ready(POLLIN) && recv(probe, &first, 1, 0) == 1;
    close(probe);
    return answered;
}
#endif

// What is known of one connection.
struct llama_py_watch {
    double patience = 0;  // none: a server's own socket
    bool answers_others = false;
    llama_py_clock::time_point heard, began;

    llama_py_watch() = default;
    llama_py_watch(sockfd_t fd, double patience, bool answers_others)
        : patience(patience), answers_others(answers_others) {
        llama_py_limit_waiting(fd, std::max(0.1, patience / 3));
    }

    // Something was sent or received, or will be.
    void begin() {
        if (patience > 0) {
            heard = began = llama_py_clock::now();
        }
    }

    // Whether to try again, after a call that failed.
    bool goes_on(sockfd_t fd) {
#ifndef _WIN32
        if (errno == EINTR) {
            return true;
        }
        if ((errno != EAGAIN && errno != EWOULDBLOCK) || patience <= 0) {
            return false;
        }
        if (answers_others && llama_py_answers(fd, patience / 3)) {
            heard = llama_py_clock::now();
        }
        const std::chrono::duration<double> silent = llama_py_clock::now() - heard;
        return silent.count() < patience * (answers_others ? 1.0 : LLAMA_PY_SILENT);
#else
        (void) fd;
        return false;
#endif
    }
};

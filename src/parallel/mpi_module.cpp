// SPDX-License-Identifier: Apache-2.0
// The functions of mpi_calls.hpp over MPI: all of espalier that is linked with it.
#include <mpi.h>

#include <cstdio>
#include <new>

#include "parallel/mpi_calls.hpp"

namespace espalier::parallel {
namespace {

// One message in several pieces where a count of MPI's, an int, does not hold it.
constexpr std::int64_t kPiece = std::int64_t{1} << 30;
constexpr int kPieces = 8;

struct Message {
    MPI_Request requests[kPieces];
    std::int64_t bytes = 0;
    int pieces = 0, done = 0;
};

bool join(int* rank, int* count, char* error, int error_bytes) {
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_SERIALIZED) {
        std::snprintf(error, static_cast<std::size_t>(error_bytes),
                      "MPI_Init_thread gives level %d, not %d", provided, MPI_THREAD_SERIALIZED);
        return false;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, count);
    return true;
}

template <typename Start>
void* start(std::int64_t bytes, Start&& piece) {
    if (bytes < 0 || bytes > kPieces * kPiece) return nullptr;
    auto* const message = new (std::nothrow) Message;
    if (message == nullptr) return nullptr;
    std::int64_t at = 0;
    do {
        const std::int64_t length = bytes - at < kPiece ? bytes - at : kPiece;
        if (piece(at, static_cast<int>(length), &message->requests[message->pieces]) !=
            MPI_SUCCESS) {
            delete message;
            return nullptr;
        }
        ++message->pieces;
        at += length;
    } while (at < bytes);
    return message;
}

void* send(const void* from, std::int64_t bytes, int to, int tag, bool synchronous) {
    return start(bytes, [&](std::int64_t at, int length, MPI_Request* request) {
        const void* const piece = static_cast<const char*>(from) + at;
        return synchronous ? MPI_Issend(piece, length, MPI_BYTE, to, tag, MPI_COMM_WORLD, request)
                           : MPI_Isend(piece, length, MPI_BYTE, to, tag, MPI_COMM_WORLD, request);
    });
}

void* receive(void* to, std::int64_t most, int from, int tag) {
    return start(most, [&](std::int64_t at, int length, MPI_Request* request) {
        return MPI_Irecv(static_cast<char*>(to) + at, length, MPI_BYTE, from, tag, MPI_COMM_WORLD,
                         request);
    });
}

int test(void* handle, std::int64_t* bytes) {
    auto* const message = static_cast<Message*>(handle);
    while (message->done < message->pieces) {
        int done = 0, count = 0;
        MPI_Status status;
        if (MPI_Test(&message->requests[message->done], &done, &status) != MPI_SUCCESS) {
            delete message;
            return -1;
        }
        if (done == 0) return 0;
        MPI_Get_count(&status, MPI_BYTE, &count);
        message->bytes += count > 0 ? count : 0;
        ++message->done;
    }
    *bytes = message->bytes;
    delete message;
    return 1;
}

void finish() { MPI_Finalize(); }

}  // namespace

extern "C" __attribute__((visibility("default")))
const MpiCalls espalier_mpi_calls = {kMpiCallsVersion, join, send, receive, test, finish};

}  // namespace espalier::parallel

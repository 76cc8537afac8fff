// SPDX-License-Identifier: Apache-2.0
// What a rank needs of MPI, as functions of C: libespalier-mpi.so has them (mpi_module.cpp) and is
// opened where a program was started by mpirun. The program itself knows nothing of MPI and runs
// without it.
#pragma once

#include <cstdint>

namespace espalier::parallel {

inline constexpr int kMpiCallsVersion = 1;
inline constexpr const char* kMpiCallsSymbol = "espalier_mpi_calls";

struct MpiCalls {
    int version;
    // Joins the world. False: the reason is in `error`.
    bool (*join)(int* rank, int* count, char* error, int error_bytes);
    // A message on its way; null: it could not be started. synchronous: it has arrived when the
    // other has begun to receive it, not when it has left.
    void* (*send)(const void* from, std::int64_t bytes, int to, int tag, bool synchronous);
    void* (*receive)(void* to, std::int64_t most, int from, int tag);
    // 1: done and forgotten, with the bytes that arrived; 0: not yet; -1: failed and forgotten.
    int (*test)(void* message, std::int64_t* bytes);
    // All ranks: the orderly end.
    void (*finish)();
};

}  // namespace espalier::parallel

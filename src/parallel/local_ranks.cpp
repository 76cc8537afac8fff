// SPDX-License-Identifier: Apache-2.0
#include "parallel/local_ranks.hpp"

#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/memory_ranks.hpp"

namespace espalier::parallel {

void run_local_ranks(int count, const std::function<void(Ranks&)>& body,
                     const LocalOptions& options) {
    Expected<RankMemory> created = RankMemory::create(count, options.window_bytes);
    if (!created) throw std::runtime_error(created.error().message);
    const auto memory = std::make_shared<RankMemory>(std::move(*created));
    std::mutex mutex;
    std::exception_ptr first;
    const auto failed = [&](MemoryRanks& ranks, const char* reason) {
        {
            const std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
        }
        ranks.leave(reason);
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank)
        threads.emplace_back([&, rank] {
            MemoryRanks ranks(memory, rank, options.timeout);
            try {
                body(ranks);
            } catch (const std::exception& error) {
                failed(ranks, error.what());
            } catch (...) {
                failed(ranks, "an exception");
            }
        });
    for (std::thread& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
}

}  // namespace espalier::parallel

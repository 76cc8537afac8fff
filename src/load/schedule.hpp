// SPDX-License-Identifier: Apache-2.0
// When each request of a load is sent. Pure: no clock, no socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "load/options.hpp"

namespace espalier::load {

// Seconds from the start, ascending, a function of requests, rate, burstiness and seed. Intervals
// are drawn from a gamma distribution of mean 1/rate and shape `burstiness`, then scaled so that
// the last request comes at requests/rate: as vLLM does, so that figures of seeds compare.
std::vector<double> arrival_times(const LoadOptions& options);

// Says what to do next: send a request, wait for its time, or for another's end.
class Pacer {
  public:
    Pacer(std::vector<double> arrivals, std::int64_t concurrency);

    struct Send {
        std::size_t request;
    };
    struct WaitUntil {
        double seconds;
    };
    struct WaitForEnd {};
    struct Finished {};
    using Step = std::variant<Send, WaitUntil, WaitForEnd, Finished>;

    // A request that is to be sent counts as under way from here on.
    Step next(double now);
    void ended() { --under_way_; }
    // Sends no more.
    void give_up() { arrivals_.resize(sent_); }

    double due(std::size_t request) const { return arrivals_[request]; }
    std::int64_t under_way() const { return under_way_; }
    std::size_t sent() const { return sent_; }

  private:
    std::vector<double> arrivals_;
    std::int64_t concurrency_;
    std::size_t sent_ = 0;
    std::int64_t under_way_ = 0;
};

}  // namespace espalier::load

// SPDX-License-Identifier: Apache-2.0
// base/index.hpp for clang 14, which cannot compile libstdc++'s views.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ranges>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace std::plain_views {

struct iota {
    iota(int from, int to) : first(from), last(to) {}
    int first, last;
};
template <typename Function>
struct transform {
    explicit transform(Function function) : function(std::move(function)) {}
    Function function;
};
template <typename Function>
auto operator|(iota numbers, transform<Function> made) {
    std::vector<decltype(made.function(0))> all;
    for (int i = numbers.first; i < numbers.last; ++i) all.push_back(made.function(i));
    return all;
}

}  // namespace std::plain_views

#define views plain_views
#include_next "base/index.hpp"
#undef views

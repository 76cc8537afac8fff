// SPDX-License-Identifier: Apache-2.0
// Indices of different kinds that do not mix. A step has several small integers (whose request, at
// which place of the plan, which row of the block tables), and each indexes arrays of its own.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ranges>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace espalier {

template <typename Tag>
class Index {
  public:
    constexpr Index() = default;  // names nothing
    constexpr explicit Index(std::int32_t value) : value_(value) {}
    constexpr std::int32_t value() const { return value_; }
    auto operator<=>(const Index&) const = default;

  private:
    std::int32_t value_ = -1;
};

// A request in the arrays of scheduler, engine and drafters: taken again after the request's end.
using RequestSlot = Index<struct RequestSlotTag>;
// A request of a plan, in the order of Plan::requests.
using PlanIndex = Index<struct PlanIndexTag>;
// A row of the block tables.
using TableRow = Index<struct TableRowTag>;

// 0 … count − 1.
template <typename Id>
auto indices(std::size_t count) {
    return std::views::iota(std::int32_t{0}, static_cast<std::int32_t>(count)) |
           std::views::transform([](std::int32_t value) { return Id(value); });
}

// A vector with one element for each index of a kind.
template <typename Id, typename T>
class IndexedVector {
  public:
    IndexedVector() = default;
    explicit IndexedVector(std::size_t count, const T& value = T()) : values_(count, value) {}

    bool has(Id index) const {
        return index.value() >= 0 && static_cast<std::size_t>(index.value()) < values_.size();
    }
    T& operator[](Id index) { return values_[static_cast<std::size_t>(index.value())]; }
    const T& operator[](Id index) const { return values_[static_cast<std::size_t>(index.value())]; }
    // Longer, where it has no such index yet.
    T& grown_to(Id index) {
        CHECK(index.value() >= 0, "index {}", index.value());
        if (!has(index)) values_.resize(static_cast<std::size_t>(index.value()) + 1);
        return (*this)[index];
    }
    auto begin() { return values_.begin(); }
    auto end() { return values_.end(); }
    auto begin() const { return values_.begin(); }
    auto end() const { return values_.end(); }
    // The vector itself, for all that does not ask by index.
    std::vector<T>& values() { return values_; }
    const std::vector<T>& values() const { return values_; }

  private:
    std::vector<T> values_;
};

}  // namespace espalier

template <typename Tag>
struct std::hash<espalier::Index<Tag>> {
    std::size_t operator()(espalier::Index<Tag> index) const {
        return std::hash<std::int32_t>()(index.value());
    }
};

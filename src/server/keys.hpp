// SPDX-License-Identifier: Apache-2.0
// API keys: those of --api-key and those of a file, which may have names and limits and is read
// again on SIGHUP. What a key's requests hold at a time is counted for its name, across readings.
// Belongs to the I/O thread, but for KeyUse.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace espalier::server {

// Counts of a key's requests that are being answered. Any thread.
struct KeyUse {
    std::atomic<std::int64_t> requests = 0;
    std::atomic<std::int64_t> tokens = 0;  // of prompts and of the outputs they may have
};

struct ApiKey {
    std::string name, secret;
    std::int64_t max_requests = 0, max_tokens = 0;  // at a time; 0: any
    std::size_t tenant = 0;         // from 1, one for each name; prompts of others share no pages
    std::shared_ptr<KeyUse> use{};  // of the name
};

// A line for each key: NAME SECRET [requests=N] [tokens=N], white space between; # comments. `file`
// stands in errors, secrets do not.
Expected<std::vector<ApiKey>> parse_keys(std::string_view text, const std::string& file);

// Takes a time that depends on the lengths alone.
bool equal_in_constant_time(std::string_view secret, std::string_view given);

class KeyRing {
  public:
    // secrets: of --api-key; their names are key-1 and so on.
    explicit KeyRing(const std::vector<std::string>& secrets);
    // The file's keys from now on, beside those of --api-key. An error changes nothing.
    Expected<void> load(const std::string& file);

    bool empty() const { return keys_.empty(); }
    std::size_t size() const { return keys_.size(); }
    // Null: it is none of these.
    std::shared_ptr<const ApiKey> find(std::string_view given) const;

  private:
    struct Known {
        std::size_t tenant = 0;
        std::shared_ptr<KeyUse> use;
    };
    void add(ApiKey key, std::vector<std::shared_ptr<const ApiKey>>& keys);

    const std::vector<std::string> secrets_;
    std::vector<std::shared_ptr<const ApiKey>> keys_;
    std::map<std::string, Known> known_;  // by name, also of keys that are gone
};

// One request's share of its key's limits, until release() or its end. A null key has none. Any
// thread.
class KeyHold {
  public:
    explicit KeyHold(std::shared_ptr<const ApiKey> key);
    ~KeyHold() { release(); }
    KeyHold(const KeyHold&) = delete;
    KeyHold& operator=(const KeyHold&) = delete;

    // Tokens beside those held; an error of kind exhausted (others hold too many) or invalid (it
    // alone is too large) holds none of them.
    Expected<void> add_tokens(std::int64_t tokens);
    void release();

  private:
    const std::shared_ptr<const ApiKey> key_;
    std::atomic<bool> released_ = false;
    std::atomic<std::int64_t> tokens_ = 0;
};

// The key has room for one request more.
bool has_room(const ApiKey& key);

}  // namespace espalier::server

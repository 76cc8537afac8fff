// SPDX-License-Identifier: Apache-2.0
#include "server/keys.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "base/mapped_file.hpp"

namespace espalier::server {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxKeys = 4096;  // each is compared for each request
constexpr std::size_t kMaxKeyBytes = 512;

bool is_key_name(std::string_view name) {
    return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_' || c == '.';
    });
}

bool is_secret(std::string_view secret) {
    return secret.size() <= kMaxKeyBytes &&
           std::ranges::all_of(secret, [](char c) { return c > 0x20 && c < 0x7f; });
}

// requests=N or tokens=N.
Expected<void> read_limit(const std::string& word, const std::string& place, ApiKey& key) {
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string name = word.substr(0, equals);
    std::int64_t* limit = name == "requests" ? &key.max_requests
                          : name == "tokens" ? &key.max_tokens
                                             : nullptr;
    const std::string digits = equals < word.size() ? word.substr(equals + 1) : "";
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (limit == nullptr || error != std::errc() || end != digits.data() + digits.size() ||
        value < 1)
        return fail(ErrorKind::invalid, "{}: '{}' is neither requests=N nor tokens=N, N at least 1",
                    place, word.substr(0, 40));
    *limit = value;
    return {};
}

}  // namespace

Expected<std::vector<ApiKey>> parse_keys(std::string_view text, const std::string& file) {
    std::vector<ApiKey> keys;
    std::istringstream lines{std::string(text)};
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
        const std::string place = fmt::format("{}:{}", file, ++number);
        std::istringstream words(line.substr(0, line.find('#')));
        ApiKey key;
        if (!(words >> key.name)) continue;
        if (!is_key_name(key.name))
            return fail(ErrorKind::invalid,
                        "{}: a name of 1 to 64 letters, digits, '-', '_' and '.' is expected "
                        "first",
                        place);
        if (!(words >> key.secret)) return fail(ErrorKind::invalid, "{}: no key", place);
        if (!is_secret(key.secret))
            return fail(ErrorKind::invalid, "{}: a key is at most {} bytes of printable ASCII",
                        place, kMaxKeyBytes);
        for (std::string word; words >> word;)
            ESPALIER_RETURN_IF_ERROR(read_limit(word, place, key));
        for (const ApiKey& other : keys)
            if (other.name == key.name || other.secret == key.secret)
                return fail(ErrorKind::invalid, "{}: the {} of '{}' stands twice", place,
                            other.name == key.name ? "name" : "key", other.name);
        if (keys.size() == kMaxKeys)
            return fail(ErrorKind::invalid, "{}: more than {} keys", place, kMaxKeys);
        keys.push_back(std::move(key));
    }
    if (keys.empty()) return fail(ErrorKind::invalid, "{}: no key", file);
    return keys;
}

bool equal_in_constant_time(std::string_view secret, std::string_view given) {
    // The given one is walked in full, whatever its first bytes are.
    unsigned difference = secret.size() == given.size() ? 0u : 1u;
    for (std::size_t i = 0; i < given.size(); ++i) {
        const char mine = secret.empty() ? '\0' : secret[i % secret.size()];
        difference |= static_cast<unsigned char>(mine) ^ static_cast<unsigned char>(given[i]);
    }
    return difference == 0 && !secret.empty();
}

KeyRing::KeyRing(const std::vector<std::string>& secrets) : secrets_(secrets) {
    for (std::size_t i = 0; i < secrets_.size(); ++i)
        add({.name = fmt::format("key-{}", i + 1), .secret = secrets_[i]}, keys_);
}

void KeyRing::add(ApiKey key, std::vector<std::shared_ptr<const ApiKey>>& keys) {
    Known& known = known_[key.name];
    if (known.tenant == 0) known = {known_.size(), std::make_shared<KeyUse>()};
    key.tenant = known.tenant;
    key.use = known.use;
    keys.push_back(std::make_shared<const ApiKey>(std::move(key)));
}

Expected<void> KeyRing::load(const std::string& file) {
    ESPALIER_ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kMaxFileBytes));
    ESPALIER_ASSIGN_OR_RETURN(std::vector<ApiKey> read, parse_keys(text, file));
    std::vector<std::shared_ptr<const ApiKey>> keys(
        keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(secrets_.size()));
    for (ApiKey& key : read) add(std::move(key), keys);
    keys_ = std::move(keys);
    return {};
}

std::shared_ptr<const ApiKey> KeyRing::find(std::string_view given) const {
    std::shared_ptr<const ApiKey> found;
    for (const auto& key : keys_)
        if (equal_in_constant_time(key->secret, given)) found = key;
    return found;
}

bool has_room(const ApiKey& key) {
    return key.max_requests == 0 || key.use->requests < key.max_requests;
}

KeyHold::KeyHold(std::shared_ptr<const ApiKey> key) : key_(std::move(key)) {
    if (key_) ++key_->use->requests;
}

Expected<void> KeyHold::add_tokens(std::int64_t tokens) {
    if (!key_ || key_->max_tokens == 0) return {};
    if (tokens > key_->max_tokens - tokens_)
        return fail(ErrorKind::invalid,
                    "prompt and output may have {} tokens together; this API key may use {} at a "
                    "time",
                    tokens_ + tokens, key_->max_tokens);
    if (key_->use->tokens.fetch_add(tokens) + tokens > key_->max_tokens) {
        key_->use->tokens -= tokens;
        return fail(ErrorKind::exhausted,
                    "the requests of this API key may use {} tokens at a time; {} more are too "
                    "many now",
                    key_->max_tokens, tokens);
    }
    tokens_ += tokens;
    return {};
}

void KeyHold::release() {
    if (!key_) return;
    if (!released_.exchange(true)) --key_->use->requests;
    key_->use->tokens -= tokens_.exchange(0);
}

}  // namespace espalier::server

// SPDX-License-Identifier: Apache-2.0
// The requests of a load as JSON bodies, each a function of the options and its number.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "load/options.hpp"

namespace espalier::load {

// A tokenizer is the server's own affair; English text has about four bytes to a token.
inline constexpr std::int64_t kBytesPerToken = 4;

std::string request_body(const LoadOptions& options, std::size_t request);
const char* request_path(Api api);

// Lines of {"prompt": …}; other fields are the file's own business. `name` stands in errors.
Expected<std::vector<std::string>> parse_prompts(std::string_view lines, std::string_view name);
// ShareGPT's: a list of {"conversations": [{"from", "value"}, …]}; of each the first message of a
// human, where an answer follows it.
Expected<std::vector<std::string>> parse_conversations(std::string_view text,
                                                       std::string_view name);
// Options that contradict each other or cannot be sent.
Expected<void> check_prompts(const LoadOptions& options);

}  // namespace espalier::load

// SPDX-License-Identifier: Apache-2.0
// A chat whose last message, an assistant's, is to be continued: continue_final_message, and what
// Anthropic calls prefill. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "chat/template.hpp"

namespace espalier::server {

// Check that the last of these messages can be continued: it is an assistant's, has a text and no
// calls. Otherwise a sentence that says why not.
Expected<void> check_continued(const nlohmann::json& messages);

// The rendered chat up to the end of its last message's text: what the template wrote behind it
// (the mark of its end) is left out. A template that does not write the text is refused; white
// space at the text's ends it may leave out.
Expected<chat::Rendered> cut_behind_final_message(chat::Rendered rendered,
                                                  const nlohmann::json& messages);

}  // namespace espalier::server

// SPDX-License-Identifier: Apache-2.0
// A chat in the form that templates read (chat_messages.hpp), put together from the blocks and
// items of other APIs: what follows in the same role becomes one message. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace espalier::server {

class Conversation {
  public:
    void system(const std::string& text);
    // Texts of one turn are joined by line ends.
    void user(const std::string& text);
    // Texts of one turn are joined as they stand: they were one output, cut where a call was.
    void assistant(const std::string& text);
    void reasoning(const std::string& text);
    void call(const std::string& id, const std::string& name, const std::string& arguments);
    void tool_result(const std::string& id, const std::string& text);

    // The next message is another turn, whatever its role.
    void end_turn() { turn_is_open_ = false; }
    bool ends_with_assistant() const;
    // The chat; what an assistant's turn lacks is filled in.
    nlohmann::json take();

  private:
    // The last message if it has this role, or a new one.
    nlohmann::json& turn_of(const char* role);

    bool turn_is_open_ = false;
    nlohmann::json messages_ = nlohmann::json::array();
};

// JSON as Python's json.dumps and most templates write it: the arguments of an earlier call, whose
// text a client no longer has.
std::string spaced_json(const nlohmann::ordered_json& value);

}  // namespace espalier::server

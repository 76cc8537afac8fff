// SPDX-License-Identifier: Apache-2.0
// The letters that byte-level vocabularies spell bytes with: printable Latin-1 stands for itself,
// the other 68 bytes for U+0100 and up, in order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace espalier::text {

std::string letter_of_byte(unsigned char byte);
// nullopt when some character is no such letter.
std::optional<std::string> bytes_of_letters(std::string_view valid_text);

}  // namespace espalier::text

// SPDX-License-Identifier: Apache-2.0
// String formats as regular expressions: the syntax of the RFC that defines each, in ASCII. Dates
// exist in every year: 29 February is left out. There is no year 0, which Python's dates refuse.
#include <array>
#include <utility>

#include "grammar/schema.hpp"

namespace espalier::grammar {
namespace {

#define YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define DATE                                                                                    \
    YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[" \
         "1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define LABEL "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
#define IPV4                                                                                      \
    "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-" \
    "9])"
#define H16 "[0-9a-fA-F]{1,4}"
#define URI_CHARACTER "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kFormats = {{
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration",
     "P([0-9]+W|([0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?)"
     "(T([0-9]+S|[0-9]+M([0-9]+S)?|[0-9]+H([0-9]+M([0-9]+S)?)?))?"
     "|T([0-9]+S|[0-9]+M([0-9]+S)?|[0-9]+H([0-9]+M([0-9]+S)?)?))"},
    {"email", "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@" LABEL
              "(\\." LABEL ")*"},
    {"hostname", LABEL "(\\." LABEL ")*"},
    {"ipv4", IPV4},
    {"ipv6", "((" H16 ":){7}" H16 "|(" H16 ":){1,6}:" H16 "|(" H16 ":){1,7}:|::(" H16 ")?)"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*://" LABEL "(\\." LABEL ")*(:[0-9]{1,5})?(/" URI_CHARACTER
            "*)*(\\?(" URI_CHARACTER "|[/?])*)?(#(" URI_CHARACTER "|[/?])*)?"},
}};

#undef YEAR
#undef DATE
#undef TIME
#undef LABEL
#undef IPV4
#undef H16
#undef URI_CHARACTER

}  // namespace

std::string_view format_pattern(std::string_view format) {
    for (const auto& [name, pattern] : kFormats)
        if (name == format) return pattern;
    return {};
}

}  // namespace espalier::grammar

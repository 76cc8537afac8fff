// SPDX-License-Identifier: Apache-2.0
// Errors as values: anything a file, a flag or a request can get wrong returns Expected<T> with a
// sentence that names the thing and the two numbers. Programmer errors use check.hpp instead.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace espalier {

enum class ErrorKind {
    invalid,      // the input contradicts itself or its format
    unsupported,  // well formed, but named as something this build cannot do
    not_found,    // a file, tensor or field is missing
    io,           // the operating system refused
    exhausted,    // a limit or the memory of this machine is too small
};

struct Error {
    ErrorKind kind = ErrorKind::invalid;
    std::string message;
    // The field of a request or a configuration at fault, as its writer names it ("temperature",
    // "stop[2]"); the message begins with it and a colon. Empty: no single field is at fault.
    std::string field = {};
};

template <typename T>
using Expected = tl::expected<T, Error>;

// return fail(ErrorKind::invalid, "{}: tensor '{}' ends at {} but the file has {} bytes", …);
template <typename... Args>
tl::unexpected<Error> fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
    return tl::unexpected<Error>(Error{kind, fmt::format(format, std::forward<Args>(args)...)});
}

// One field's error, for clients that are told which: the message becomes "field: sentence".
// return fail_field(ErrorKind::invalid, "temperature", "{}, not within 0…100", temperature);
template <typename... Args>
tl::unexpected<Error> fail_field(ErrorKind kind, std::string field,
                                 fmt::format_string<Args...> format, Args&&... args) {
    std::string message = field + ": ";
    fmt::format_to(std::back_inserter(message), format, std::forward<Args>(args)...);
    return tl::unexpected<Error>(Error{kind, std::move(message), std::move(field)});
}

// The same error where its field goes by another name: a flag's, or another API's.
inline Error with_field(Error error, std::string name) {
    if (error.field.empty()) return error;
    error.message.replace(0, error.field.size(), name);
    error.field = std::move(name);
    return error;
}

}  // namespace espalier

// Checks of a call that returns Expected<…>: hand an error up, keep the value otherwise.
#define ESPALIER_CONCAT_INNER(a, b) a##b
#define ESPALIER_CONCAT(a, b) ESPALIER_CONCAT_INNER(a, b)
#define ESPALIER_RETURN_IF_ERROR(expression)                   \
    if (auto espalier_result = (expression); !espalier_result) \
    return tl::unexpected<::espalier::Error>(std::move(espalier_result.error()))
#define ESPALIER_ASSIGN_OR_RETURN(declaration, expression)                                  \
    ESPALIER_ASSIGN_OR_RETURN_IMPL(ESPALIER_CONCAT(espalier_value_, __LINE__), declaration, \
                                   expression)
#define ESPALIER_ASSIGN_OR_RETURN_IMPL(name, declaration, expression)             \
    auto name = (expression);                                                     \
    if (!name) return tl::unexpected<::espalier::Error>(std::move(name.error())); \
    declaration = std::move(*name)

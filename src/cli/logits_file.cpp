// SPDX-License-Identifier: Apache-2.0
#include "cli/logits_file.hpp"

#include <algorithm>
#include <fstream>
#include <vector>

#include "model/sequence.hpp"

namespace espalier::cli {

std::string npy_header(std::int64_t rows, std::int64_t columns) {
    std::string header = fmt::format(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
    constexpr std::size_t kPrefix = 10;  // magic, version and the header's length
    header.resize((kPrefix + header.size() + 1 + 63) / 64 * 64 - kPrefix - 1, ' ');
    header += '\n';
    const auto length = header.size();
    return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(length & 0xff) +
           static_cast<char>(length >> 8) + header;
}

Expected<void> write_logits(const std::string& path, model::DeepseekModel& model,
                            std::span<const std::int32_t> prompt) {
    std::ofstream out(path, std::ios::binary);
    const auto length = static_cast<std::int64_t>(prompt.size());
    const std::int64_t vocabulary = model.config().vocab_size;
    out << npy_header(length, vocabulary);
    ESPALIER_ASSIGN_OR_RETURN(model::Sequence sequence,
                              model::Sequence::create(model, length, length));
    const std::int64_t chunk = std::min(model.limits().max_gather, model.limits().max_tokens);
    std::vector<float> row(static_cast<std::size_t>(vocabulary));
    for (std::int64_t first = 0; first < length && out; first += chunk) {
        const std::int64_t count = std::min(chunk, length - first);
        ESPALIER_ASSIGN_OR_RETURN(const model::Fed fed,
                                  sequence.feed(model,
                                                prompt.subspan(static_cast<std::size_t>(first),
                                                               static_cast<std::size_t>(count)),
                                                count));
        if (fed.nonfinite)
            return fail(ErrorKind::invalid,
                        "{}: the model computed a NaN or infinity after position {}", path, first);
        for (std::int64_t i = 0; i < count; ++i) {
            ESPALIER_RETURN_IF_ERROR(model.device().download(model.device().stream(), row.data(),
                                                             fed.logits.row<float>(i),
                                                             row.size() * sizeof(float)));
            out.write(reinterpret_cast<const char*>(row.data()),
                      static_cast<std::streamsize>(row.size() * sizeof(float)));
        }
    }
    out.close();
    if (!out) return fail_field(ErrorKind::io, "logits", "'{}' cannot be written", path);
    return {};
}

}  // namespace espalier::cli

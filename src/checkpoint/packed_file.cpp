// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/packed_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "base/check.hpp"
#include "base/content_hash.hpp"
#include "base/gguf.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/tensor_hash.hpp"

namespace espalier::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIdentity = "espalier.packed";
constexpr const char* kSums = "espalier.sums";
constexpr const char* kTitle = "espalier packed weights";
constexpr std::size_t kSamples = 64;
constexpr std::size_t kSampleBytes = 4096;

constexpr std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + PackedFile::kAlignment - 1) / PackedFile::kAlignment * PackedFile::kAlignment;
}

// Sum of a stretch that finds mistakes, not forgers. Four chains side by side: one alone would wait
// for its products and not for the memory.
std::uint64_t sum_of(std::span<const std::byte> bytes) {
    std::array<std::uint64_t, 4> chains = {bytes.size(), 1, 2, 3};
    const auto add = [&](std::size_t chain, std::uint64_t word) {
        chains[chain] = std::rotl(chains[chain] ^ word, 29) * 0x9e3779b97f4a7c15u;
    };
    std::size_t at = 0;
    for (; at + 32 <= bytes.size(); at += 32) {
        std::array<std::uint64_t, 4> words;
        std::memcpy(words.data(), bytes.data() + at, sizeof(words));
        for (std::size_t chain = 0; chain < 4; ++chain) add(chain, words[chain]);
    }
    for (; at < bytes.size(); ++at) add(0, std::to_integer<std::uint64_t>(bytes[at]));
    for (std::size_t chain = 1; chain < 4; ++chain) add(0, chains[chain]);
    return chains[0];
}

// Stretch of a section that has a sum of its own, so that many threads read one.
constexpr std::size_t kStretch = 4 << 20;
constexpr std::size_t stretches_of(std::size_t bytes) { return (bytes + kStretch - 1) / kStretch; }
std::span<const std::byte> stretch(std::span<const std::byte> section, std::size_t index) {
    return section.subspan(index * kStretch, std::min(kStretch, section.size() - index * kStretch));
}

// The whole first section: lines of text, then zeros.
std::string identity_text(const PackedIdentity& identity, std::string_view head) {
    ContentHash hash;
    hash.add(head);
    std::string text = fmt::format("{}\nlayout {}\nversion {}\nsource {}\nheader {}\n", kTitle,
                                   identity.layout, identity.version, identity.source, hash.text());
    text.resize(PackedFile::kAlignment, '\0');
    return text;
}

// The rest of the line that begins with `key` and a space; empty: there is none.
std::string_view line_of(std::string_view text, std::string_view key) {
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ')
            return line.substr(key.size() + 1, 64);
        text.remove_prefix(std::min(text.size(), line.size() + 1));
    }
    return {};
}

// Differences, most telling first.
tl::unexpected<Error> refuse(const fs::path& path, std::string_view found,
                             const PackedIdentity& wanted) {
    const std::string name = path.string();
    if (!found.starts_with(kTitle)) return fail(ErrorKind::invalid, "{}: no packed weights", name);
    if (const auto layout = line_of(found, "layout"); layout != wanted.layout)
        return fail(ErrorKind::invalid, "{}: layout '{}', expected '{}'", name, layout,
                    wanted.layout);
    if (const auto version = line_of(found, "version"); version != std::to_string(wanted.version))
        return fail(ErrorKind::invalid, "{}: version '{}' of its layout, expected {}", name,
                    version, wanted.version);
    if (const auto source = line_of(found, "source"); source != wanted.source)
        return fail(ErrorKind::invalid, "{}: packed from the weights '{}', wanted are {}", name,
                    source, wanted.source);
    return fail(ErrorKind::invalid, "{}: its header is damaged", name);
}

}  // namespace

std::string weights_fingerprint(const Checkpoint& checkpoint) {
    ContentHash hash;
    for (const auto& file : checkpoint.files()) {
        hash.add(file->name());
        for (const auto& [name, entry] : file->tensors()) {
            add_entry(hash, name, entry);
            hash.word(entry.begin);
        }
        const std::span<const std::byte> bytes = file->file().bytes();
        if (bytes.size() <= kSamples * kSampleBytes) {
            hash.add(bytes);
            continue;
        }
        const std::size_t last = bytes.size() - kSampleBytes;
        for (std::size_t i = 0; i < kSamples; ++i)
            hash.add(bytes.subspan(last / (kSamples - 1) * i, kSampleBytes));
        hash.add(bytes.last(kSampleBytes));
    }
    return hash.text();
}

fs::path packed_path(const fs::path& directory, std::string_view layout) {
    if (is_gguf_name(directory.native()))
        return fmt::format("{}.packed-{}.espalier", directory.string(), layout);
    return directory / fmt::format("packed-{}.espalier", layout);
}

Expected<PackedFile> PackedFile::open(const fs::path& path, const PackedIdentity& wanted) {
    PackedFile packed;
    ESPALIER_ASSIGN_OR_RETURN(packed.file_, open_safetensors(path));
    const TensorEntries& entries = packed.file_.tensors();
    const auto identity = entries.find(kIdentity);
    if (identity == entries.end() || identity->second.end - identity->second.begin != kAlignment)
        return refuse(path, {}, wanted);
    for (const auto& [name, entry] : entries)
        if (entry.type != StoredType::u8 || entry.begin % kAlignment != 0)
            return fail(ErrorKind::invalid,
                        "{}: section '{}' is {} at byte {}, expected U8 at a multiple of {}",
                        path.string(), name, entry.type_name(), entry.begin, kAlignment);
    const auto text_of = [](std::span<const std::byte> bytes) {
        return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    const std::string_view found = text_of(packed.file_.bytes_of(identity->second));
    // All but the data: the first byte of a section is where the header ends.
    std::uint64_t data = packed.file().size();
    for (const auto& [name, entry] : entries) data = std::min(data, entry.begin);
    const std::string_view head =
        text_of(packed.file().bytes().first(static_cast<std::size_t>(data)));
    if (found != identity_text(wanted, head)) return refuse(path, found, wanted);
    return packed;
}

Expected<std::span<const std::byte>> PackedFile::section(std::string_view name,
                                                         std::uint64_t bytes) const {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end())
        return fail(ErrorKind::not_found, "{}: no section '{}'", file().path().string(), name);
    const std::span<const std::byte> section = file_.bytes_of(found->second);
    if (section.size() != aligned(bytes))
        return fail(ErrorKind::invalid, "{}: section '{}' has {} bytes, expected {}",
                    file().path().string(), name, section.size(), aligned(bytes));
    return section.first(static_cast<std::size_t>(bytes));
}

Expected<void> PackedFile::check_sums(ThreadPool& pool,
                                      const std::function<bool(std::string_view)>& left_out) const {
    std::vector<std::pair<std::string_view, std::span<const std::byte>>> sections;
    for (const auto& [name, entry] : file_.tensors())
        if (name != kSums && name != kIdentity) sections.emplace_back(name, file_.bytes_of(entry));
    // The order in which they were written.
    std::ranges::sort(sections, {}, [](const auto& one) { return one.second.data(); });
    struct Task {
        std::size_t section, index;
        std::uint64_t sum;
    };
    std::vector<Task> tasks;
    for (std::size_t i = 0; i < sections.size(); ++i)
        for (std::size_t j = 0; j < stretches_of(sections[i].second.size()); ++j)
            tasks.push_back({i, j, 0});
    ESPALIER_ASSIGN_OR_RETURN(const auto sums, section(kSums, tasks.size() * 8));
    for (std::size_t i = 0; i < tasks.size(); ++i)
        std::memcpy(&tasks[i].sum, sums.data() + i * 8, 8);
    std::erase_if(tasks, [&](const Task& task) { return left_out(sections[task.section].first); });
    std::atomic<std::size_t> damaged = sections.size();
    pool.run(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index, int) {
        const Task& task = tasks[static_cast<std::size_t>(index)];
        if (sum_of(stretch(sections[task.section].second, task.index)) != task.sum)
            damaged = task.section;
    });
    if (damaged == sections.size()) return {};
    return fail(ErrorKind::invalid, "{}: section '{}' is damaged", file().path().string(),
                sections[damaged].first);
}

PackedFileWriter::~PackedFileWriter() {
    if (file_ == nullptr) return;
    std::error_code ignored;
    fs::remove(part_, ignored);
}

Expected<PackedFileWriter> PackedFileWriter::create(fs::path path, const PackedIdentity& identity,
                                                    std::vector<Section> sections) {
    Shard shard;
    const auto add = [&](const std::string& name, std::uint64_t bytes) {
        TensorSpec spec;
        spec.name = name;
        spec.type = StoredType::u8;
        spec.shape = {static_cast<std::int64_t>(aligned(bytes))};
        shard.tensors.push_back(std::move(spec));
    };
    add(kIdentity, PackedFile::kAlignment);
    std::uint64_t sums = 0;
    for (const Section& section : sections) {
        add(section.name, section.bytes);
        sums += stretches_of(static_cast<std::size_t>(aligned(section.bytes)));
    }
    add(kSums, sums * 8);
    const std::string head = safetensors_head(shard, PackedFile::kAlignment);

    PackedFileWriter writer;
    writer.path_ = std::move(path);
    writer.sections_ = std::move(sections);
    writer.part_ = fmt::format("{}.{}.part", writer.path_.string(), ::getpid());
    std::error_code ignored;
    fs::remove(writer.part_, ignored);
    writer.file_ = std::make_unique<OutputFile>(writer.part_);
    ESPALIER_RETURN_IF_ERROR(writer.file_->write(head.data(), head.size()));
    const std::string text = identity_text(identity, head);
    ESPALIER_RETURN_IF_ERROR(writer.file_->write(text.data(), text.size()));
    return writer;
}

Expected<void> PackedFileWriter::put(std::span<const std::byte> bytes) {
    static constexpr std::byte kZeros[PackedFile::kAlignment] = {};
    ESPALIER_RETURN_IF_ERROR(file_->write(bytes.data(), bytes.size()));
    return file_->write(kZeros, static_cast<std::size_t>(aligned(bytes.size()) - bytes.size()));
}

Expected<void> PackedFileWriter::write(std::string_view name, std::span<const std::byte> bytes) {
    CHECK(next_ < sections_.size() && sections_[next_].name == name &&
              sections_[next_].bytes == bytes.size(),
          "section {} of {}: '{}' of {} bytes is not what was listed", next_, sections_.size(),
          name, bytes.size());
    ++next_;
    ESPALIER_RETURN_IF_ERROR(put(bytes));
    // Sums cover what lies in the file: zeros behind the last bytes too.
    const auto size = static_cast<std::size_t>(aligned(bytes.size()));
    for (std::size_t i = 0; i < stretches_of(size); ++i) {
        const std::span<const std::byte> part = stretch(bytes, i);
        if (part.size() == kStretch || bytes.size() == size) {
            sums_.push_back(sum_of(part));
            continue;
        }
        std::vector<std::byte> last(part.begin(), part.end());
        last.resize(size - i * kStretch);
        sums_.push_back(sum_of(last));
    }
    return {};
}

Expected<void> PackedFileWriter::finish() {
    CHECK(next_ == sections_.size(), "{} of {} sections written", next_, sections_.size());
    ESPALIER_RETURN_IF_ERROR(put(std::as_bytes(std::span(sums_))));
    ESPALIER_RETURN_IF_ERROR(file_->close());
    std::error_code error;
    fs::rename(part_, path_, error);
    if (error) return fail(ErrorKind::io, "{}: cannot rename: {}", path_.string(), error.message());
    file_.reset();
    return {};
}

}  // namespace espalier::checkpoint

// SPDX-License-Identifier: Apache-2.0
#include "runtime/rank_messages.hpp"

#include <sys/utsname.h>

#include <filesystem>
#include <utility>

#include "base/content_hash.hpp"
#include "base/mapped_file.hpp"
#include "base/text_identity.hpp"
#include "checkpoint/model_hash.hpp"
#include "espalier/version.hpp"
#include "runtime/identity.hpp"

namespace espalier::runtime {
namespace {

constexpr std::size_t kMostFacts = 256;

struct SizesWriter {
    FlatWriter& writer;
    void integer(const char*, std::int64_t value, std::int64_t, std::int64_t) {
        writer.number(value);
    }
    void maybe_count(const char*, std::int64_t value, std::int64_t) { writer.number(value); }
};

struct SizesReader {
    FlatReader& reader;
    Expected<void> result = {};

    template <typename T>
    void integer(const char* name, T& value, std::int64_t least, std::int64_t most) {
        const auto read = reader.number<std::int64_t>();
        if (read < least || read > most) {
            if (result)
                result =
                    fail(ErrorKind::invalid, "{} of {}, not within {}…{}", name, read, least, most);
            return;
        }
        value = static_cast<T>(read);
    }
    void maybe_count(const char* name, std::int64_t& value, std::int64_t most) {
        integer(name, value, 0, most);
    }
};

struct SizesFacts {
    RankFacts& facts;
    void integer(const char* name, std::int64_t value, std::int64_t, std::int64_t) {
        facts.push_back({name, std::to_string(value)});
    }
    void maybe_count(const char* name, std::int64_t value, std::int64_t most) {
        integer(name, value, 0, most);
    }
};

void write_sizes(FlatWriter& writer, const EngineSizes& sizes) {
    SizesWriter visit{writer};
    EngineSizes::fields(visit, sizes);
}

Expected<EngineSizes> read_sizes(FlatReader& reader) {
    EngineSizes sizes;
    SizesReader visit{reader};
    EngineSizes::fields(visit, sizes);
    ESPALIER_RETURN_IF_ERROR(visit.result);
    return sizes;
}

// The program's own file: two builds of one version differ in it.
Expected<std::string> build_hash() {
    ESPALIER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open("/proc/self/exe"));
    ContentHash hash;
    hash.add(file.bytes());
    return hash.text();
}

}  // namespace

LoadOptions RankModel::load_options() const {
    return {.device = DeviceKind::cpu,
            .threads = threads,
            .kv_format = kv_format,
            .rounding = rounding,
            .head_rounding = head_rounding,
            .activations = activations,
            .mmap_experts = mmap_experts,
            .mtp = mtp};
}

void write(FlatWriter& writer, const RankModel& model) {
    writer.text(model.path);
    writer.number(static_cast<std::int32_t>(model.threads));
    writer.text(model.kv_format ? mla::name_of(*model.kv_format) : "");
    writer.text(model.rounding ? name_of(*model.rounding) : "");
    writer.text(model.head_rounding ? name_of(*model.head_rounding) : "");
    writer.text(model.activations ? name_of(*model.activations) : "");
    writer.number(static_cast<std::uint8_t>(model.mmap_experts));
    writer.number(static_cast<std::uint8_t>(model.mtp));
    write_sizes(writer, model.sizes);
}

Expected<RankModel> read_rank_model(FlatReader& reader) {
    RankModel model;
    model.path = reader.text();
    model.threads = reader.number<std::int32_t>();
    const std::string kv_format = reader.text(), rounding = reader.text(), head = reader.text();
    const std::string activations = reader.text();
    model.kv_format = parse_kv_format(kv_format);
    model.rounding = parse_rounding(rounding);
    model.head_rounding = parse_head_rounding(head);
    model.activations = parse_number_mode(activations);
    model.mmap_experts = reader.flag();
    model.mtp = reader.flag();
    ESPALIER_ASSIGN_OR_RETURN(model.sizes, read_sizes(reader));
    ESPALIER_RETURN_IF_ERROR(reader.finish("a model"));
    if (model.path.empty() || model.path.find('\0') != std::string::npos)
        return fail(ErrorKind::invalid, "a model without a path");
    if (!kv_format.empty() && !model.kv_format)
        return fail(ErrorKind::invalid, "a cache of unknown numbers");
    if ((!rounding.empty() && !model.rounding) || (!head.empty() && !model.head_rounding))
        return fail(ErrorKind::invalid, "weights of unknown numbers");
    if (!activations.empty() && !model.activations)
        return fail(ErrorKind::invalid, "activations of unknown numbers");
    return model;
}

void write(FlatWriter& writer, const RankNumbers& numbers) {
    writer.text(numbers.machine);
    writer.number(numbers.memory_bytes);
    writer.number(numbers.weight_bytes);
    writer.number(numbers.page_bytes);
}

Expected<RankNumbers> read_rank_numbers(FlatReader& reader) {
    RankNumbers numbers;
    numbers.machine = reader.text();
    numbers.memory_bytes = reader.number<std::int64_t>();
    numbers.weight_bytes = reader.number<std::int64_t>();
    numbers.page_bytes = reader.number<std::int64_t>();
    ESPALIER_RETURN_IF_ERROR(reader.finish("numbers of a rank"));
    if (numbers.memory_bytes < 0 || numbers.weight_bytes < 0 || numbers.page_bytes <= 0)
        return fail(ErrorKind::invalid, "{} bytes of memory, {} of weights, {} of a page",
                    numbers.memory_bytes, numbers.weight_bytes, numbers.page_bytes);
    return numbers;
}

void write(FlatWriter& writer, const RankEngine& engine) {
    write_sizes(writer, engine.sizes);
    writer.number(static_cast<std::uint8_t>(engine.mtp));
}

Expected<RankEngine> read_rank_engine(FlatReader& reader) {
    RankEngine engine;
    ESPALIER_ASSIGN_OR_RETURN(engine.sizes, read_sizes(reader));
    engine.mtp = reader.flag();
    ESPALIER_RETURN_IF_ERROR(reader.finish("an engine"));
    return engine;
}

void write(FlatWriter& writer, const RankFacts& facts) {
    writer.number(static_cast<std::uint64_t>(facts.size()));
    for (const RankFact& fact : facts) {
        writer.text(fact.name);
        writer.text(fact.value);
    }
}

Expected<RankFacts> read_rank_facts(FlatReader& reader) {
    const auto count = reader.number<std::uint64_t>();
    if (count > kMostFacts) return fail(ErrorKind::invalid, "{} facts of a rank", count);
    RankFacts facts(static_cast<std::size_t>(count));
    for (RankFact& fact : facts) {
        fact.name = reader.text();
        fact.value = reader.text();
    }
    ESPALIER_RETURN_IF_ERROR(reader.finish("facts of a rank"));
    return facts;
}

Expected<RankFacts> rank_facts(const LoadedModel& loaded, const EngineSizes& sizes) {
    RankFacts facts;
    facts.push_back({"version", ESPALIER_VERSION});
    ESPALIER_ASSIGN_OR_RETURN(std::string build, build_hash());
    facts.push_back({"build", std::move(build)});
    ESPALIER_ASSIGN_OR_RETURN(
        const TextIdentity identity,
        identity_without_model(*loaded.checkpoint, loaded.identity_options(), 0));
    for (const IdentityField& field : listed(identity))
        facts.push_back({std::string(field.name), field.value});
    ESPALIER_ASSIGN_OR_RETURN(std::string files, checkpoint::header_hash(*loaded.checkpoint));
    facts.push_back({"files", std::move(files)});
    SizesFacts visit{facts};
    EngineSizes::fields(visit, sizes);
    return facts;
}

Expected<void> check_same(const RankFacts& first, const RankFacts& other, const std::string& rank) {
    if (first.size() != other.size())
        return fail(ErrorKind::invalid, "{} says {} facts of itself, rank 0 {}", rank, other.size(),
                    first.size());
    for (std::size_t i = 0; i < first.size(); ++i)
        if (!(first[i] == other[i]))
            return fail(ErrorKind::invalid, "{} has {} {}, rank 0 {}", rank, other[i].name,
                        other[i].value, first[i].value);
    return {};
}

std::string machine_identity() {
    utsname names{};
    std::string text = uname(&names) == 0 ? names.nodename : "";
    if (const auto boot = read_text_file("/proc/sys/kernel/random/boot_id", 256))
        text += " " + *boot;
    return text;
}

}  // namespace espalier::runtime

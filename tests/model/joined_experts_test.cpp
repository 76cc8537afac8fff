// SPDX-License-Identifier: Apache-2.0
// Experts that lie in one tensor for a layer, as transformers 5 writes Mistral Small 4, give the
// bits of experts one by one; and so does FP8 with one scale for a matrix, of a grid filled with
// it.
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/tensor_check.hpp"
#include "model/tiny_model.hpp"
#include "support/safetensors_editor.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;
using Entry = SafetensorsEditor::Entry;

void edit_config(const fs::path& directory, const auto& edit) {
    std::ifstream in(directory / "config.json");
    nlohmann::ordered_json config = nlohmann::ordered_json::parse(in);
    edit(config);
    std::ofstream(directory / "config.json") << config.dump();
}

// The tensors ".mlp.experts.N.PART" of every layer, taken out, by layer and in the order of N.
std::map<std::string, std::vector<Entry>> take_experts(SafetensorsEditor& file,
                                                       const std::string& part) {
    std::map<std::string, std::vector<Entry>> taken;
    for (auto at = file.tensors.begin(); at != file.tensors.end();) {
        const std::size_t split = at->first.find(".mlp.experts.");
        if (split == std::string::npos || !at->first.ends_with("." + part)) {
            ++at;
            continue;
        }
        const std::string layer = at->first.substr(0, split + 13);
        const auto expert = static_cast<std::size_t>(std::stoi(at->first.substr(layer.size())));
        auto& list = taken[layer];
        if (list.size() <= expert) list.resize(expert + 1);
        list[expert] = std::move(at->second);
        at = file.tensors.erase(at);
    }
    return taken;
}

// [experts, rows, columns], each expert's parts one below the other.
void join(SafetensorsEditor& file, const std::string& name, const std::vector<std::string>& parts) {
    std::vector<std::map<std::string, std::vector<Entry>>> taken;
    for (const std::string& part : parts) taken.push_back(take_experts(file, part));
    for (const auto& [layer, first] : taken.front()) {
        Entry joined = first.front();
        joined.bytes.clear();
        joined.shape[0] *= std::ssize(parts);
        joined.shape.insert(joined.shape.begin(), std::ssize(first));
        for (std::size_t expert = 0; expert < first.size(); ++expert)
            for (auto& of_part : taken) joined.bytes += of_part[layer][expert].bytes;
        file.tensors[layer + name] = std::move(joined);
    }
}

std::vector<float> logits_in(const fs::path& directory) {
    const auto opened = checkpoint::Checkpoint::open(directory.string());
    EXPECT_TRUE(opened && checkpoint::check_tensors(*opened));
    return logits_of_eight(directory);
}

checkpoint::SyntheticModel small(DType dtype) {
    checkpoint::SyntheticModel model = *checkpoint::synthetic_preset("tiny-mistral4");
    model.config.num_hidden_layers = 2;
    model.dtype = dtype;
    if (dtype == DType::e4m3) model.config.fp8_block = 128;
    return model;
}

TEST(JoinedExperts, HaveTheBitsOfExpertsOneByOne) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3}) {
        SCOPED_TRACE(name_of(dtype));
        checkpoint::SyntheticModel model = small(dtype);
        model.config.moe_intermediate_size = 128;  // blocks of scales do not cross from gate to up
        const TemporaryDirectory directory;
        write_model(model, directory.path() / "model");
        const std::vector<float> single = logits_in(directory.path() / "model");
        SafetensorsEditor file(directory.path() / "model/model.safetensors");
        join(file, "gate_up_proj", {"gate_proj.weight", "up_proj.weight"});
        join(file, "down_proj", {"down_proj.weight"});
        if (dtype == DType::e4m3) {
            join(file, "gate_up_proj_scale_inv",
                 {"gate_proj.weight_scale_inv", "up_proj.weight_scale_inv"});
            join(file, "down_proj_scale_inv", {"down_proj.weight_scale_inv"});
        }
        file.save();
        ASSERT_TRUE(file.tensors.contains("model.layers.1.mlp.experts.gate_up_proj"));
        EXPECT_EQ(logits_in(directory.path() / "model"), single);
    }
}

// The published form: every scale one number, an expert's gate and up share theirs, activations
// have scales beside them.
TEST(JoinedExperts, WithOneScaleForAMatrixToo) {
    const TemporaryDirectory directory;
    const fs::path blocks = directory.path() / "blocks", one = directory.path() / "one";
    write_model(small(DType::e4m3), blocks);
    SafetensorsEditor file(blocks / "model.safetensors");
    int index = 0;
    for (auto& [name, tensor] : file.tensors) {
        if (!name.ends_with("weight_scale_inv")) continue;
        // A power of two for each matrix, gate's and up's the same.
        const float scale = std::ldexp(1.0f, -11 - (name.find("experts.") != std::string::npos
                                                        ? static_cast<int>(name.size()) % 3
                                                        : index++ % 3));
        for (std::size_t at = 0; at < tensor.bytes.size(); at += 4)
            std::memcpy(tensor.bytes.data() + at, &scale, 4);
    }
    for (auto& [name, tensor] : file.tensors)  // names of unlike length
        if (const std::size_t at = name.find("up_proj.weight_scale_inv");
            at != std::string::npos && name.find("experts.") != std::string::npos)
            tensor.bytes = file.tensors[name.substr(0, at) + "gate_proj.weight_scale_inv"].bytes;
    file.save();
    const std::vector<float> expected = logits_in(blocks);

    fs::copy(blocks, one);
    edit_config(one, [](auto& config) {
        config["quantization_config"]["weight_block_size"] = nullptr;
        config["quantization_config"]["activation_scheme"] = "static";
    });
    SafetensorsEditor edited(one / "model.safetensors");
    std::map<std::string, Entry> beside;
    for (auto& [name, tensor] : edited.tensors) {
        if (!name.ends_with("weight_scale_inv")) continue;
        tensor.bytes.resize(4);
        tensor.shape.clear();
        const bool expert = name.find("mlp.experts.") != std::string::npos;
        if (expert)
            tensor.shape = {1, 1};
        else
            beside[name.substr(0, name.size() - 16) + "activation_scale"] = {
                "F32", {}, std::string("\0\0\x80\x3f", 4)};
    }
    edited.tensors.merge(beside);
    join(edited, "gate_up_proj", {"gate_proj.weight", "up_proj.weight"});
    join(edited, "down_proj", {"down_proj.weight"});
    take_experts(edited, "up_proj.weight_scale_inv");
    join(edited, "gate_up_proj_scale_inv", {"gate_proj.weight_scale_inv"});
    join(edited, "down_proj_scale_inv", {"down_proj.weight_scale_inv"});
    for (const char* layer : {"model.layers.0", "model.layers.1"})
        for (const char* part : {"gate_up_proj", "down_proj"}) {
            std::string ones;
            for (int expert = 0; expert < 8; ++expert) ones += std::string("\0\0\x80\x3f", 4);
            edited.tensors[std::string(layer) + ".mlp.experts." + part + "_activation_scale"] = {
                "F32", {8}, ones};
        }
    edited.save();
    EXPECT_EQ(logits_in(one), expected);

    edited.tensors["model.layers.0.self_attn.o_proj.weight_scale_inv"].bytes =
        std::string("\0\0\x80\xbf", 4);
    edited.save();
    const auto opened =
        std::make_shared<const checkpoint::Checkpoint>(*checkpoint::Checkpoint::open(one.string()));
    const Machine machine = cpu_machine(1, best_cpu_variant());
    const auto refused = Weights::load(opened, *machine.device, *machine.backend, {});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("o_proj.weight_scale_inv' is -1, expected a positive"),
              std::string::npos)
        << refused.error().message;
}

TEST(JoinedExperts, AreRefusedInOtherShapes) {
    const TemporaryDirectory directory;
    write_model(small(DType::bf16), directory.path() / "model");
    const auto opened_with = [&](std::vector<std::int64_t> shape) {
        SafetensorsEditor file(directory.path() / "model/model.safetensors");
        file.put("model.layers.0.mlp.experts.gate_up_proj", "BF16", std::move(shape), 2);
        file.save();
        const auto opened = checkpoint::Checkpoint::open((directory.path() / "model").string());
        return opened ? std::string("opened") : opened.error().message;
    };
    EXPECT_NE(opened_with({8, 128}).find("expected 3 dimensions"), std::string::npos);
    EXPECT_NE(opened_with({8, 3, 128}).find("joins gate and up in 3 rows"), std::string::npos);
    // Beside the experts one by one.
    EXPECT_NE(opened_with({8, 128, 128}).find("experts.0.gate_proj.weight' is in"),
              std::string::npos);
}

}  // namespace
}  // namespace espalier::model

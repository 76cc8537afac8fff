// SPDX-License-Identifier: Apache-2.0
// The architecture stands in the path: what needs Hopper lies in folders of that name, and few
// files outside lean on them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "support/paths.hpp"

namespace {

namespace fs = std::filesystem;

const std::set<std::string> kLeanOnHopper = {
    // choose among kernels, or say what they touch
    "linalg/cuda/order.cpp",
    "linalg/cuda/product.cpp",
    "mla/cuda/absorbed/absorbed.cpp",
    "mla/cuda/prompt/decompressed.cpp",
};

struct Source {
    std::string path;  // below src/
    std::string text;
    bool in_hopper = false;
};

template <typename Visit>
void for_cuda_sources(const Visit& visit) {
    const fs::path source = fs::path(espalier::test::source_directory()) / "src";
    for (const auto& entry : fs::recursive_directory_iterator(source)) {
        if (!entry.is_regular_file()) continue;
        const std::string path = fs::relative(entry.path(), source).generic_string();
        if (path.find("/cuda") == std::string::npos) continue;
        std::ifstream in(entry.path());
        visit(Source{path,
                     {std::istreambuf_iterator<char>(in), {}},
                     path.find("/hopper/") != std::string::npos});
    }
}

TEST(Hopper, IsIncludedFromOutsideByTheseFilesAlone) {
    std::set<std::string> found;
    for_cuda_sources([&](const Source& source) {
        if (source.in_hopper) return;
        for (std::size_t at = 0; (at = source.text.find("#include \"", at)) != std::string::npos;
             ++at)
            if (source.text.substr(at, source.text.find('\n', at) - at).find("/hopper/") !=
                std::string::npos)
                found.insert(source.path);
    });
    EXPECT_EQ(found, kLeanOnHopper);
}

TEST(Hopper, InstructionsHaveOnePlace) {
    int files = 0;
    for_cuda_sources([&](const Source& source) {
        ++files;
        if (source.path.rfind("base/cuda/hopper/", 0) == 0) return;
        for (const char* word : {"\"wgmma.", "\"setmaxnreg.", "cp.async.bulk"})
            EXPECT_EQ(source.text.find(word), std::string::npos) << source.path << ": " << word;
        if (source.path.rfind("base/cuda/", 0) == 0) return;
        for (const char* word :
             {"\"mbarrier.", "\"barrier.cluster.", "\"mapa.", "\"griddepcontrol.", "\"ldmatrix.",
              "\"stmatrix.", "\"mma.sync.", "\"bar.sync", "cudaLaunchKernelEx"})
            EXPECT_EQ(source.text.find(word), std::string::npos) << source.path << ": " << word;
    });
    EXPECT_GT(files, 100);
}

}  // namespace

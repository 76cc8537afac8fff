// SPDX-License-Identifier: Apache-2.0
// Prints how fast a tokenizer encodes on one core: bench_text DIRECTORY [FILE…]. Without files,
// made-up prose, code, CJK and one 10 MB word.
#include <cstdio>
#include <ctime>
#include <random>
#include <string>

#include "base/mapped_file.hpp"
#include "text/tokenizer.hpp"

namespace {

using namespace espalier::text;
// Processor time, not wall time: the machine may be busy with other things.
double seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Best of three.
void measure(const Tokenizer& tokenizer, const char* name, const std::string& text) {
    double best = 1e9;
    std::size_t tokens = 0;
    for (int run = 0; run < 3; ++run) {
        const double begin = seconds();
        const auto ids = tokenizer.encode(text);
        best = std::min(best, seconds() - begin);
        if (!ids) {
            std::printf("%-12s %s\n", name, ids.error().message.c_str());
            return;
        }
        tokens = ids->size();
    }
    const double megabytes = static_cast<double>(text.size()) / 1e6;
    std::printf("%-12s %8.2f MB %8.3f s %8.2f MB/s %8.2f bytes/token\n", name, megabytes, best,
                megabytes / best, static_cast<double>(text.size()) / static_cast<double>(tokens));
}

std::string repeated(std::string_view piece, std::size_t bytes) {
    std::string text;
    std::mt19937 random(1);
    while (text.size() < bytes) {  // another number each time, so that no two rounds are equal
        text.append(piece);
        text.append(std::to_string(random() % 1000));
    }
    return text;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench_text DIRECTORY [FILE…]\n");
        return 2;
    }
    const double begin = seconds();
    const auto tokenizer = Tokenizer::load(argv[1]);
    if (!tokenizer) {
        std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
        return 1;
    }
    std::printf("load         %.3f s\n", seconds() - begin);
    for (int i = 2; i < argc; ++i) {
        const auto text = espalier::read_text_file(argv[i], 256u << 20);
        if (!text) {
            std::fprintf(stderr, "%s\n", text.error().message.c_str());
            return 1;
        }
        measure(*tokenizer, std::filesystem::path(argv[i]).filename().c_str(), *text);
    }
    if (argc > 2) return 0;
    measure(*tokenizer, "prose",
            repeated("It was a bright cold day in April, and the clocks were striking thirteen; "
                     "she hadn't noticed. ",
                     4'000'000));
    measure(*tokenizer, "code",
            repeated("    for (std::size_t i = 0; i < values.size(); ++i) {\n        total += "
                     "values[i] * 2;\n    }\n",
                     4'000'000));
    measure(
        *tokenizer, "cjk",
        repeated(
            "人工智能是研究、开发用于模拟和扩展人的智能的理论。吾輩は猫である。名前はまだ無い。",
            4'000'000));
    std::mt19937 random(2);
    std::string word(10'000'000, ' ');
    for (char& c : word) c = static_cast<char>('a' + random() % 26);
    measure(*tokenizer, "10 MB word", word);
    measure(*tokenizer, "10 MB 'a'", std::string(10'000'000, 'a'));
    measure(*tokenizer, "10 MB space", std::string(10'000'000, ' ') + "x");
    return 0;
}

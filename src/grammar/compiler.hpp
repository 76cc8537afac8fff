// SPDX-License-Identifier: Apache-2.0
// Specifications become grammars here, bounded in input, memory and waiting time, on threads of the
// compiler's own. Called where a request is submitted, never on the engine's thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/error.hpp"
#include "grammar/mask_cache.hpp"
#include "grammar/specification.hpp"
#include "grammar/vocabulary.hpp"

namespace espalier::grammar {

// False: this build has no grammars (ESPALIER_GRAMMAR), and every compile() says so.
bool available();

// Immutable; any number of matchers on any threads share one.
class CompiledGrammar {
  public:
    struct Impl;
    explicit CompiledGrammar(std::unique_ptr<const Impl> impl);
    ~CompiledGrammar();
    CompiledGrammar(const CompiledGrammar&) = delete;
    CompiledGrammar& operator=(const CompiledGrammar&) = delete;

    const Specification& specification() const;
    const Vocabulary& vocabulary() const;
    std::size_t bytes() const;  // about what it holds in memory
    std::int64_t work() const;  // that compiling took, in steps of CompilerLimits::work
    const Impl& impl() const { return *impl_; }

  private:
    std::unique_ptr<const Impl> impl_;
};

using Compiled = Expected<std::shared_ptr<const CompiledGrammar>>;

// Limits of what a request may ask for. docs/grammars.md has the reasons for the numbers.
struct CompilerLimits {
    std::size_t cache_bytes = std::size_t{256} << 20;  // of compiled grammars kept for later
    std::size_t mask_bytes = std::size_t{64} << 20;    // of masks, likewise
    // The most work for one compile: bytes of tokens tried at states of the grammar.
    std::int64_t work = std::int64_t{1} << 25;
    // A request whose grammar takes longer than this, queue included, is told to come again. Within
    // the limits above only a machine that is busy with something else takes so long.
    std::chrono::milliseconds wait{60000};
    int threads = 2;  // grammars compiled at the same time
    int queue = 256;  // specifications that wait for a thread
};

struct CompilerStatus {
    std::int64_t compiled = 0;  // specifications that became grammars
    std::int64_t hits = 0;      // answers from the cache, or from a compile under way
    std::int64_t refused = 0;   // specifications that did not
    std::int64_t overran = 0;   // of the refused: those that waited longer than `wait`
    std::int64_t running = 0;   // right now, those whose callers gave up included
    std::int64_t cached = 0;    // grammars in the cache
    std::size_t cached_bytes = 0;
    double seconds = 0.0;  // spent compiling
    MaskCounts masks;
};

class Compiler {
  public:
    explicit Compiler(Vocabulary vocabulary, CompilerLimits limits = {});
    ~Compiler();  // stops
    Compiler(const Compiler&) = delete;
    Compiler& operator=(const Compiler&) = delete;

    // Calls done once: before it returns where the answer is known, later on a thread of the
    // compiler's own otherwise, at most limits.wait later. There done must be quick: others wait.
    // It throws nothing and does not end the compiler.
    //
    // The same content gives the same object while a caller holds it or it is cached. The error
    // says what is wrong with the specification: `invalid` (malformed, unsatisfiable, or beyond a
    // limit, by its number), `unsupported` (a keyword or construct by its name). `exhausted`: there
    // is nothing wrong with it; too many others wait, this took too long, or the compiler stops.
    // Thread-safe; throws nothing.
    using Done = std::function<void(Compiled)>;
    void compile(const Specification& specification, Done done);
    // The same, for a caller that can wait.
    Compiled compile(const Specification& specification);
    // Waits for what is being compiled, refuses what waits, and everything from then on.
    void stop();

    CompilerStatus status() const;
    const Vocabulary& vocabulary() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::grammar

// SPDX-License-Identifier: Apache-2.0
#include "runtime/grammars.hpp"

#include <utility>

namespace espalier::runtime {

Expected<std::unique_ptr<grammar::Compiler>> make_grammar_compiler(
    const ModelFiles& files, const grammar::CompilerLimits& limits) {
    const checkpoint::ModelConfig& config = files.checkpoint->config();
    ESPALIER_ASSIGN_OR_RETURN(
        grammar::Vocabulary vocabulary,
        grammar::Vocabulary::make(*files.tokenizer, config.vocab_size, config.eos_token_ids));
    return std::make_unique<grammar::Compiler>(std::move(vocabulary), limits);
}

}  // namespace espalier::runtime

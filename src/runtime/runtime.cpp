// SPDX-License-Identifier: Apache-2.0
#include "runtime/runtime.hpp"

namespace espalier::runtime {

Expected<Runtime> Runtime::open(const RuntimeOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::open(options.model, options.draft));
    return open(std::move(files), options);
}

Expected<Runtime> Runtime::open(ModelFiles files, const RuntimeOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const DrafterChoice drafters,
                              choose_drafters(options.engine.speculate, files));
    ESPALIER_ASSIGN_OR_RETURN(const SizeFacts facts, size_facts(files, drafters, options.load));
    ESPALIER_ASSIGN_OR_RETURN(const EngineSizes sizes, derive_sizes(options.engine.sizes, facts));
    ESPALIER_ASSIGN_OR_RETURN(
        LoadedModel loaded,
        LoadedModel::load(files.checkpoint, sizes, with_drafters(options.load, drafters, files)));
    ESPALIER_ASSIGN_OR_RETURN(RunningEngine running,
                              RunningEngine::start(files, loaded, sizes, options.engine));
    return Runtime(std::move(files), std::move(loaded), std::move(running));
}

}  // namespace espalier::runtime

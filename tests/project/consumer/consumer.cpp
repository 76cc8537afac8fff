// SPDX-License-Identifier: Apache-2.0
// A stranger's C++ program: finds the installed public headers, links the installed library, and
// asks it one question. (The calls themselves are the C example's.)
#include <espalier/mla.h>

#include <cstdint>
#include <cstdio>
#include <espalier/version.hpp>

int main() {
    espalier_mla_context* context = nullptr;
    if (espalier_mla_create_cpu(1, &context) != ESPALIER_MLA_OK) {
        std::printf("%s\n", espalier_mla_last_error());
        return 1;
    }
    std::int64_t bytes = 0;
    const espalier_mla_status status = espalier_mla_page_stride(ESPALIER_MLA_KV_BF16, 64, &bytes);
    espalier_mla_destroy(context);
    std::printf("espalier %s: a page of 64 tokens has %lld bytes\n", ESPALIER_VERSION,
                static_cast<long long>(bytes));
    return status == ESPALIER_MLA_OK ? 0 : 1;
}

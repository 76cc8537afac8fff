// SPDX-License-Identifier: Apache-2.0
// Machines that were measured: Sapling and V2-Lite's dimensions on an H200, Sapling on two cores.
#pragma once

#include "engine/simulated_server.hpp"

namespace espalier::engine {

inline const SimulatedMachine kSaplingH200 = {.name = "Sapling, H200",
                                              .step = {{1, 385},
                                                       {8, 445},
                                                       {16, 580},
                                                       {32, 620},
                                                       {64, 760},
                                                       {128, 830},
                                                       {256, 1000},
                                                       {512, 1200},
                                                       {1024, 1600},
                                                       {2048, 2200}},
                                              .per_row = 2.2,
                                              .beside = true,
                                              .graphs = true,
                                              .draft_call = 80,
                                              .draft_level = 90,
                                              .draft_token = 0.1,
                                              .look_on = 12,
                                              .look_token = 0.25,
                                              .free_row = 1.2,
                                              .free_token = 0.4};

inline const SimulatedMachine kV2LiteH200 = {
    .name = "V2-Lite, H200",
    .step =
        {{1, 2230}, {8, 5500}, {32, 8700}, {128, 10600}, {256, 12500}, {512, 16500}, {2048, 34000}},
    .per_row = 2,
    .beside = true,
    .graphs = true,
    .draft_call = 100,
    .draft_level = 300,
    .draft_token = 2,
    .look_on = 40,
    .look_token = 0.3,
    .free_row = 1,
    .free_token = 0.4};

inline const SimulatedMachine kSaplingCpu = {
    .name = "Sapling, CPU",
    .step = {{1, 1100}, {2, 1350}, {4, 1800}, {8, 2700}, {16, 4600}, {64, 16000}, {2048, 500000}},
    .per_row = 5,
    .key = 0.15,
    .draft_call = 60,
    .draft_level = 250,
    .draft_token = 30,
    .look_on = 5,
    .look_token = 11,
    .free_row = 2,
    .free_token = 0.4};

}  // namespace espalier::engine

// The generators behind trace_zoo(), one per workload; grouped in files by what they are about.
#pragma once

#include "allocator/replay/workload_builder.h"

namespace poolgrad::zoo {

// training.cpp
void transformer(WorkloadBuilder& out);
void alternating_batches(WorkloadBuilder& out);
void variable_lengths(WorkloadBuilder& out);
void checkpointing(WorkloadBuilder& out);
void optimizer_start(WorkloadBuilder& out);
void evaluation(WorkloadBuilder& out);
void example_training(WorkloadBuilder& out);

// attention.cpp
void dilated_segments(WorkloadBuilder& out);
void ring_attention(WorkloadBuilder& out);

// distributed.cpp
void mixture_of_experts(WorkloadBuilder& out);
void two_streams(WorkloadBuilder& out);

// inference.cpp
void growing_cache(WorkloadBuilder& out);
void paged_cache(WorkloadBuilder& out);

// adversarial.cpp
void checkerboard(WorkloadBuilder& out);
void workspace_search(WorkloadBuilder& out);

}  // namespace poolgrad::zoo

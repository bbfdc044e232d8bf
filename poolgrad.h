/// \mainpage
/// The public headers, layer by layer. They use the standard library alone. `allocator/lab/laboratory.h`,
/// `allocator/c_api.h` and `autograd/testing_gtest.h` are included by themselves. The pages in docs/ explain how the
/// parts work together; docs/start.md is the first.
#pragma once

#include "allocator/caching_allocator.h"
#include "allocator/memory/cuda_memory.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory/race_detector.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/memory/traced_memory.h"

#include "kernels/gemm.h"
#include "kernels/instruction_sets.h"
#include "kernels/parallel.h"

#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/graph.h"
#include "tensor/npy.h"
#include "tensor/print.h"
#include "tensor/safetensors.h"

#include "autograd/autocast.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/function.h"
#include "autograd/functional.h"
#include "autograd/gradcheck.h"
#include "autograd/memory/checkpoint.h"
#include "autograd/memory/checkpoint_tiled.h"
#include "autograd/memory/memory_budget.h"
#include "autograd/operators.h"
#include "autograd/testing.h"

#include "nn/checkpoint_sequential.h"
#include "nn/chunked.h"
#include "nn/ema.h"
#include "nn/language_model.h"
#include "nn/layers.h"
#include "nn/optimizer.h"
#include "nn/tasks/sequence_task.h"
#include "nn/text/corpus.h"
#include "nn/training/progress.h"
#include "nn/training/sampler.h"
#include "nn/training/trainer.h"

#include "attention/attend.h"
#include "attention/modules/buffers.h"
#include "attention/modules/multihead.h"
#include "attention/modules/named.h"
#include "attention/modules/native_sparse.h"
#include "attention/ring/ring.h"

#include "parallel/mpi.h"
#include "parallel/nccl.h"
#include "parallel/training_ranks.h"

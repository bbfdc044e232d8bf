// The rules of every source file, as functions of a list of files, so that tests can check the rules too. Each returns
// one line per violation, `path: reason`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace poolgrad::structure {

struct SourceFile {
  std::string path;  // from the root: "tensor/tensor.h"
  std::string text;
};

/// Returns every .h, .cpp, .cu and .cuh file under the root, without build and hidden folders, sorted by path.
std::vector<SourceFile> read_sources(const std::filesystem::path& root);

/// A layer includes only its own headers and those of lower layers, by their paths from the root of the tree.
std::vector<std::string> floor_violations(const std::vector<SourceFile>& files);

/// The headers that poolgrad.h and allocator/lab/laboratory.h reach are public: they contain #pragma once and include
/// neither third-party headers nor internal ones. poolgrad.h lists at most 45.
std::vector<std::string> public_header_violations(const std::vector<SourceFile>& files);

/// A folder has at most 25 entries; those of tests/ may have more.
std::vector<std::string> room_violations(const std::vector<SourceFile>& files);

/// At most 700 lines a file, and a median below 150.
std::vector<std::string> size_violations(const std::vector<SourceFile>& files);

/// Conditional compilation on CUDA: one header asks whether nvcc compiles, and GPU kernels ask for the architecture.
/// Besides them only the CUDA file of the allocator has any.
std::vector<std::string> cuda_conditional_violations(const std::vector<SourceFile>& files);

/// Only kernels/cuda/runtime.cuh launches kernels, for a launcher that checks them: no other file has three angle
/// brackets.
std::vector<std::string> launch_violations(const std::vector<SourceFile>& files);

/// The code contains no promises: no notes to finish it later, no errors that say a feature is missing.
std::vector<std::string> unfinished_violations(const std::vector<SourceFile>& files);

}  // namespace poolgrad::structure

// What one kind of attention achieved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace poolgrad::examples {

struct RecallRecord {
  std::int64_t step = 0;      // counted from 1
  std::int64_t distance = 0;  // of the step's task
  std::int64_t pairs = 0;
  double loss = 0;      // nats per answer
  double accuracy = 0;  // of this step
  double milliseconds = 0;
};

struct RecallScore {
  std::int64_t distance = 0;
  std::int64_t right = 0, asked = 0;
  double accuracy() const { return static_cast<double>(right) / static_cast<double>(asked); }
};

struct RecallResult {
  std::string attention, pattern;
  std::int64_t parameters = 0;
  std::vector<RecallRecord> records = {};
  std::vector<RecallScore> scores = {};  // by distance, on sequences not trained on
  std::int64_t tokens = 0;               // trained on
  double seconds = 0;                    // of training
  double processor_seconds = 0;          // of all threads, while training
  std::uint64_t peak_bytes = 0;          // live, while training
  bool learned = false;                  // ended before its budget because the last level was mastered
  bool interrupted = false;
};

}  // namespace poolgrad::examples

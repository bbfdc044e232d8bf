// Ring attention (Liu et al. 2023): every rank keeps a part of the queries, keys and values, and the keys and values
// travel from rank to rank until every query has met every key that it sees. Exact, for every pattern.
//
// A rank's memory, for c tokens of H heads of width D: q, k, v and out, and two slots of keys and values in which one
// message arrives while the other is computed with: (4 + 4) c H D elements, whatever the length of the sequence. The
// slots exist only where some rank sees keys of another; steps in which nobody sees anything send nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/attend.h"
#include "attention/ring/communicator.h"
#include "kernels/schedule/attention_schedule.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

/// contiguous: rank r owns the r-th of R chunks. zigzag: the chunks r and 2R - 1 - r of 2R, which gives every rank the
/// same work under a causal pattern. striped: the positions t with t mod R = r (Brandon et al. 2023). Lengths that do
/// not divide give chunks that differ by one position at most; short ones leave ranks without any.
enum class Layout { contiguous, zigzag, striped };

/// "contiguous", "zigzag", "striped"; parsing throws ValueError naming all three.
std::string to_string(Layout layout);
Layout parse_layout(const std::string& text);

/// The positions of rank `rank` of `ranks`, in a sequence whose indices 0 .. length - 1 lie at positions `offset`, ...
kernels::PositionMap shard_map(Layout layout, std::int64_t length, int rank, int ranks, std::int64_t offset = 0);

/// The ranks that have a position of [begin, end) in a sequence of `length`; a rank may come up more than once.
std::vector<int> shard_owners(Layout layout, std::int64_t length, int ranks, std::int64_t begin, std::int64_t end);

/// A rank's part of a tensor whose dimension `dim` is the sequence: a copy of its rows, in order. No gradient record.
Tensor take_shard(const Tensor& whole, Layout layout, int rank, int ranks, int dim = 1, CallSite = {});
/// All parts together; the inverse of take_shard. Throws ShapeError where the parts are not those of one sequence. No
/// gradient record.
Tensor join_shards(const std::vector<Tensor>& shards, Layout layout, int dim = 1, CallSite = {});

/// What a rank did, forward and backward added up.
struct RingStatistics {
  std::int64_t steps = 0;     // R for each pass over the ring
  std::int64_t computed = 0;  // in which this rank had something to compute
  std::int64_t skipped = 0;   // the others
  std::int64_t messages = 0;  // sent by this rank
  std::int64_t bytes_sent = 0;

  RingStatistics& operator+=(const RingStatistics& other);
  friend bool operator==(const RingStatistics&, const RingStatistics&) = default;
};

/// How keys and values get from rank to rank. ring: from neighbour to neighbour, in two slots whatever the number of
/// ranks. all_gather (Dubey et al. 2024): at once, straight to the ranks that see any of them, in a slot for each step:
/// for few ranks, which then never wait for a chain of hops.
enum class Exchange { ring, all_gather };

struct RingOptions {
  /// As for attend(), the same on every rank, with the key padding of the whole sequence. `bias`, `out_over_q` and
  /// `dq_over_out` are not for rings: ValueError.
  /// With dropout the ranks' generators must be in the same state.
  AttendOptions attend = {};
  Layout layout = Layout::contiguous;
  Exchange exchange = Exchange::ring;
  /// Of the whole sequence; where absent, the rank's share times the ranks (lengths that divide).
  std::optional<std::int64_t> queries = {}, keys = {};
  /// Of ring_attend_all() alone, where the ranks compute: rank r on devices[r mod n]; none: all of them where q is.
  /// They get their parts from there, messages go from device to device, and results come back.
  std::vector<Device> devices = {};
  /// Added to, forward and backward, where given.
  std::shared_ptr<RingStatistics> statistics = {};
};

/// One rank's part of attend() over the whole sequence: q, k and v are its parts by the layout (shard_map()), and so
/// are the results. Every rank of the communicator calls it, with the same pattern and options, and every rank runs the
/// backward. Differentiable once; the gradient of `sinks` is the share of this rank's queries. The result differs from
/// attend()'s by rounding only, the dropped weights not at all; equal calls give equal bits. Throws what attend()
/// throws, ShapeError where a part has another length than the layout says, and Error where another rank failed.
Attended ring_attend(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern,
                     const std::shared_ptr<Communicator>& communicator, const RingOptions& options = {}, CallSite = {});

/// attend() of whole tensors by a ring of `ranks` within this process: splits, runs all ranks (on a thread each, or in
/// turns on this one, which gives the same bits) and joins. Differentiable like attend(), twice as well. Its statistics
/// are the sum over the ranks.
Attended ring_attend_all(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern, int ranks,
                         const RingOptions& options = {}, LocalGroup::Progress progress = LocalGroup::Progress::turns,
                         CallSite = {});

/// Bytes of the message that carries keys and values (batch, tokens, heads, width and value_width): what a rank sends
/// for each hop forward.
std::int64_t ring_message_bytes(std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t width,
                                std::int64_t value_width, DType dtype);

}  // namespace poolgrad::attention

// Ring attention (Liu et al. 2023). Every rank keeps a part of the queries, keys and values. Keys and values travel
// from rank to rank until every query has met every key that it sees. The result is exact for every pattern.
//
// The memory of a rank with c tokens of H heads of width D does not depend on the length of the sequence: (4 + 4) c H D
// elements. These are q, k, v and out, and two slots of keys and values: one receives a message while the other is in
// use. The slots exist only if some rank sees keys of another. Steps without visible keys send nothing.
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

/// contiguous: rank r owns chunk r of R. zigzag: chunks r and 2R - 1 - r of 2R, which balances the work of a causal
/// pattern. striped: the positions t with t mod R = r (Brandon et al. 2023). If the ranks do not divide the length,
/// chunks differ by at most one position; for short sequences some ranks have none.
enum class Layout { contiguous, zigzag, striped };

/// "contiguous", "zigzag", "striped"; parsing throws ValueError naming all three.
std::string to_string(Layout layout);
Layout parse_layout(const std::string& text);

/// Returns the positions of rank `rank` of `ranks`, in a sequence whose indices 0 .. length - 1 lie at positions
/// `offset`, ...
kernels::PositionMap shard_map(Layout layout, std::int64_t length, int rank, int ranks, std::int64_t offset = 0);

/// Returns the ranks that own a position of [begin, end) in a sequence of `length`; a rank may appear more than once.
std::vector<int> shard_owners(Layout layout, std::int64_t length, int ranks, std::int64_t begin, std::int64_t end);

/// Returns a rank's part of a tensor whose dimension `dim` is the sequence: a copy of its rows, in order. No gradient
/// record.
Tensor take_shard(const Tensor& whole, Layout layout, int rank, int ranks, int dim = 1, CallSite = {});
/// Joins all parts; the inverse of take_shard. Throws ShapeError if the parts do not form one sequence. No gradient
/// record.
Tensor join_shards(const std::vector<Tensor>& shards, Layout layout, int dim = 1, CallSite = {});

/// Statistics of a rank, forward and backward added up.
struct RingStatistics {
  std::int64_t steps = 0;     // R for each pass over the ring
  std::int64_t computed = 0;  // steps in which this rank computed
  std::int64_t skipped = 0;   // the other steps
  std::int64_t messages = 0;  // sent by this rank
  std::int64_t bytes_sent = 0;

  RingStatistics& operator+=(const RingStatistics& other);
  friend bool operator==(const RingStatistics&, const RingStatistics&) = default;
};

/// The exchange of keys and values. ring: from neighbor to neighbor, in two slots for any number of ranks. all_gather
/// (Dubey et al. 2024): directly to the ranks that see them, in one slot for each step. all_gather suits few ranks,
/// which then do not wait for a chain of hops.
enum class Exchange { ring, all_gather };

struct RingOptions {
  /// As for attend(), the same on every rank, with the key padding of the whole sequence. A ring throws ValueError for
  /// `bias`, `out_over_q` and `dq_over_out`. With dropout, the ranks' generators must be in the same state.
  AttendOptions attend = {};
  Layout layout = Layout::contiguous;
  Exchange exchange = Exchange::ring;
  /// Of the whole sequence; by default the rank's share times the ranks (lengths that divide).
  std::optional<std::int64_t> queries = {}, keys = {};
  /// Devices of the ranks, for ring_attend_all() only: rank r computes on devices[r mod n]; empty: all on the device of
  /// q. Parts are copied there, messages go from device to device, and results are copied back.
  std::vector<Device> devices = {};
  /// If given, statistics of forward and backward are added to it.
  std::shared_ptr<RingStatistics> statistics = {};
};

/// Returns one rank's part of attend() over the whole sequence. q, k, v and the results are parts by the layout
/// (shard_map()). Every rank of the communicator calls it with the same pattern and options, and every rank runs the
/// backward pass. Differs from attend() by rounding only; dropped weights are the same, and equal calls give equal
/// bits. Throws the errors of attend(), ShapeError if a part has another length than the layout says, and Error if
/// another rank failed. Differentiable once; the gradient of `sinks` is the share of this rank's queries.
Attended ring_attend(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern,
                     const std::shared_ptr<Communicator>& communicator, const RingOptions& options = {}, CallSite = {});

/// attend() of whole tensors by a ring of `ranks` within this process: splits, runs all ranks and joins. Ranks run on a
/// thread each, or in turns on this one, with the same bits. Differentiable twice, like attend(). Statistics are sums
/// over the ranks.
Attended ring_attend_all(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern, int ranks,
                         const RingOptions& options = {}, LocalGroup::Progress progress = LocalGroup::Progress::turns,
                         CallSite = {});

/// Returns the bytes of the message that carries keys and values (batch, tokens, heads, width and value_width): a rank
/// sends one for each hop forward.
std::int64_t ring_message_bytes(std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t width,
                                std::int64_t value_width, DType dtype);

}  // namespace poolgrad::attention

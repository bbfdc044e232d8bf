// Models the time of a pass over a ring, phase by phase. A phase takes as long as the slowest rank's compute, by the
// roofline of a device; messages travel meanwhile.
#pragma once

#include "attention/ring/outline.h"
#include "kernels/cost.h"

namespace poolgrad::examples {

/// A link between two ranks, in each direction. A message arrives once its bytes and those of earlier messages are sent
/// and the latency has passed.
struct Link {
  double bytes_per_second = 0, latency = 0;  // seconds
};

/// In seconds.
struct PassTime {
  double total = 0, computing = 0;
  double waiting() const { return total - computing; }
  PassTime operator*(double times) const { return {total * times, computing * times}; }
  PassTime& operator+=(const PassTime& other) {
    total += other.total, computing += other.computing;
    return *this;
  }
};

/// The devices and their links.
struct Cluster {
  kernels::Roofline device;
  Link link;
  /// Whether gradients of queries are computed while those of keys arrive, as on a GPU.
  bool overlaps_gradients = false;
};

PassTime forward_time(const attention::RingCostModel& ring, const attention::RingShare& share,
                      attention::Exchange exchange, const Cluster& cluster);
PassTime backward_time(const attention::RingCostModel& ring, const attention::RingShare& share,
                       attention::Exchange exchange, const Cluster& cluster);

}  // namespace poolgrad::examples

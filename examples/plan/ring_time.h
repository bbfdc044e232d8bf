// How long a pass over a ring takes: its phases one after another, each as long as the busiest rank computes in it, by
// the roofline of a device, with messages on a link meanwhile.
#pragma once

#include "attention/ring/outline.h"
#include "kernels/cost.h"

namespace poolgrad::examples {

/// Between two ranks, in each direction: a message arrives when its bytes and those of the messages before it have
/// gone out, and the latency has passed.
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

/// What computes and what carries.
struct Cluster {
  kernels::Roofline device;
  Link link;
  /// Whether the gradients of the queries are computed while those of the keys arrive, as on a GPU.
  bool overlaps_gradients = false;
};

PassTime forward_time(const attention::RingOutline& ring, const attention::RingShare& share,
                      attention::Exchange exchange, const Cluster& cluster);
PassTime backward_time(const attention::RingOutline& ring, const attention::RingShare& share,
                       attention::Exchange exchange, const Cluster& cluster);

}  // namespace poolgrad::examples

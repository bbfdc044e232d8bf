// A cache that frees memory when the pool runs short. A registered client needs no size limit of its own.
//
// Expected: the cache holds 48 blocks in a budget of 64 MiB; a request for 24 MiB takes half of them, and nothing
// fails.
#include <iostream>
#include <map>

#include <poolgrad/poolgrad.h>

using namespace poolgrad;

/// A cache of squares that frees its oldest entries when the pool needs memory.
class Squares : public ReclaimClient {
 public:
  Tensor of(std::int64_t n) {
    Tensor& kept = squares_[n];
    if (!kept.defined()) kept = square(full({256, 1024}, static_cast<double>(n)));  // 1 MiB
    return kept;
  }
  std::size_t count() const { return squares_.size(); }

  std::string name() const override { return "squares"; }
  double price_per_byte() const override { return 0.5; }  // nanoseconds to recompute a byte
  std::size_t estimate() override { return squares_.size() << 20; }
  std::size_t reclaim(std::size_t bytes) override {
    std::size_t freed = 0;
    while (freed < bytes && !squares_.empty()) {
      freed += squares_.begin()->second.storage()->bytes();
      squares_.erase(squares_.begin());
    }
    return freed;
  }

 private:
  std::map<std::int64_t, Tensor> squares_;
};

int main() {
  CachingAllocator& pool = allocator_for(cpu);
  pool.set_budget(std::size_t{64} << 20);
  const auto squares = std::make_shared<Squares>();
  pool.add_client(squares);
  for (std::int64_t n = 0; n < 48; ++n) squares->of(n);
  std::cout << squares->count() << " blocks are cached, of " << format_bytes(pool.budget()) << '\n';
  const Tensor large = zeros({6, 1024, 1024});  // 24 MiB
  std::cout << squares->count() << " are left beside a tensor of " << format_bytes(large.storage()->bytes())
            << "; square 47 is " << squares->of(47).to_vector<float>().front() << '\n';
}

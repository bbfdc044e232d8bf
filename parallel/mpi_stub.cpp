// Replaces poolgrad::mpi in a build without MPI.
#include "allocator/error.h"
#include "parallel/mpi.h"

namespace poolgrad::parallel {

struct MpiWorld::State {};

MpiWorld::MpiWorld(const MpiOptions&) {
  throw Error("[mpi] poolgrad was built without MPI: apt-get install libopenmpi-dev openmpi-bin, and build it again");
}
MpiWorld::~MpiWorld() = default;

const std::shared_ptr<attention::Communicator>& MpiWorld::communicator() const { return all_; }
std::shared_ptr<attention::Communicator> MpiWorld::split(int) { return all_; }
void MpiWorld::run(const std::function<void()>&) {}

}  // namespace poolgrad::parallel

// A rank that throws, at whatever moment of training, ends all of them with its reason, and leaves no file half
// written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "autograd/engine/engine.h"
#include "tests/parallel/training_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::parallel::testing_support {
namespace {

using attention::Communicator;
using attention::LocalGroup;
using poolgrad::testing_support::TemporaryFolder;

enum class Moment { before_a_step, in_the_backward_pass, between_buckets, before_saving, before_the_report };

/// What every rank has heard where rank 2 of four throws then.
std::vector<std::string> heard(Moment moment, const std::string& path) {
  std::vector<std::string> heard(4);
  LocalGroup group(4);
  const auto train = [&](Communicator& one) {
    const bool fails = one.rank() == 2;
    const auto at = [&](Moment now) {
      if (fails && moment == now) throw ValueError("out of luck");
    };
    RankOfRun rank({.batch = 4, .shard = true}, group.communicator(one.rank()), {2, 2});
    HookHandle hook;
    rank.losses(2);
    at(Moment::before_a_step);
    const std::vector<Tensor> parameters = rank.trainer.model().parameters();
    const bool early = moment == Moment::in_the_backward_pass;
    if (fails && (early || moment == Moment::between_buckets))
      hook = register_hook(early ? parameters.back() : parameters[3], [](const Tensor& gradient) -> Tensor {
        if (gradient.defined()) throw ValueError("out of luck");
        return gradient;
      });
    rank.losses(1);
    at(Moment::before_saving);
    rank.trainer.save(path);
    at(Moment::before_the_report);
    rank.trainer.validate(1);
  };
  try {
    group.run(1, [&](Communicator& one, int) {
      try {
        train(one);
      } catch (const std::exception& error) {
        heard[static_cast<std::size_t>(one.rank())] = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return heard;
}

TEST(TrainingEndings, AllHearOfARankThatThrowsAtAnyMoment) {
  for (const Moment moment : {Moment::before_a_step, Moment::in_the_backward_pass, Moment::between_buckets,
                              Moment::before_saving, Moment::before_the_report}) {
    const TemporaryFolder folder;
    const std::string path = folder.file("checkpoint.safetensors");
    const std::vector<std::string> all = heard(moment, path);
    EXPECT_EQ(all[2], "out of luck") << static_cast<int>(moment);
    for (const std::size_t other : {0u, 1u, 3u})
      EXPECT_EQ(all[other], "[exchange] rank 2 failed: out of luck") << static_cast<int>(moment) << " " << other;
    const bool saved = std::filesystem::exists(path);  // all that are behind it may still fail, but it is whole
    EXPECT_TRUE(moment == Moment::before_the_report || !saved) << static_cast<int>(moment);
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(parent), {}), saved ? 1 : 0)
        << "nothing is left behind";
    if (!saved) continue;
    RankOfRun alone({.batch = 4});
    alone.trainer.resume(path);
    EXPECT_EQ(alone.trainer.steps_done(), 3);
  }
}

}  // namespace
}  // namespace poolgrad::parallel::testing_support

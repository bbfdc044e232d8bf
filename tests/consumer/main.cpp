// d/dx sum(x^2) = 2 x: the whole way through an installed poolgrad. Exits with 0 if it holds.
#if defined(WITHOUT_UMBRELLA)
#include <poolgrad/autograd/operators/arithmetic.h>
#include <poolgrad/autograd/operators/reductions.h>
#include <poolgrad/tensor/creation.h>
#else
#include <poolgrad/poolgrad.h>
#endif

#include <cstdio>
#include <vector>

int main() {
  poolgrad::Tensor x = poolgrad::from_data(std::vector<float>{1.0f, -2.0f, 3.0f}, {3}).set_requires_grad();
  poolgrad::sum(x * x).backward();
  const std::vector<float> gradient = x.grad().to_vector<float>();
  std::printf("%g %g %g\n", static_cast<double>(gradient[0]), static_cast<double>(gradient[1]),
              static_cast<double>(gradient[2]));
  return gradient == std::vector<float>{2.0f, -4.0f, 6.0f} ? 0 : 1;
}

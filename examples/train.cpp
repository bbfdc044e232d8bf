// Trains a long-context language model on any text; every byte of it comes from the pool.
//
//   train                                   two layers at context 4096 on Eigen's sources, under four minutes
//   train --text book.txt --steps 500       on any text
//   train --tokenizer bpe:1024              tokens of several bytes
//   train --device cuda                     on a GPU
//   train --device sim:8GiB --steps 3       the same allocations without arithmetic
//   train --save a.safetensors              then: train --resume a.safetensors
//   train --html run.html --live            a page that is kept up to date (by train_watched, as --profile)
//   mpirun -n 4 train --parallel data       a part of the batch each; ring: a part of each sequence (./run ring)
//   train --profile                         what the kernels of a step take
//
// Expected of the default run: below 1.6 nats per byte on held-out files, beside a unigram near 3.6, a bigram near 2.7
// and a trigram near 1.9, and a sample that looks like C++.
#include "examples/train/program.h"

int main(int argc, char** argv) { return poolgrad::examples::train_program(argc, argv); }

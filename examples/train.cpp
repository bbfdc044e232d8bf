// Trains a long-context language model on any text, with all memory from the pool.
//
//   train                                   two layers at context 4096 on Eigen's sources, under four minutes
//   train --text book.txt --steps 500       on any text
//   train --tokenizer bpe:1024              tokens of several bytes
//   train --device cuda                     on a GPU
//   train --device sim:8GiB --steps 3       the same allocations without arithmetic
//   train --save a.safetensors              then: train --resume a.safetensors
//   train --html run.html --live            a live page (by train_watched, as --profile)
//   mpirun -n 4 train --parallel data       splits the batch; ring: splits each sequence (./run ring)
//   train --profile                         time by kernel of a step
//
// Expected of the default run: below 1.6 nats per byte on validation files, beside a unigram near 3.6, a bigram
// near 2.7 and a trigram near 1.9, and a sample that looks like C++.
#include "examples/train/program.h"

int main(int argc, char** argv) { return poolgrad::examples::train_program(argc, argv); }

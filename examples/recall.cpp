// Why long contexts need long attention: values are stated with keys, and asked for by key thousands of tokens later.
//
//   recall                                              dilated attention at distance 4096
//   recall --compare causal,dilated,window              several, with the same sequences and budget
//   recall --task passkey --distance 1024               a number hidden in a long text
//   recall --distance 512 --attention window --window 64
//
// Expected of `--compare causal,dilated,window`: causal and dilated attention recall nearly everything at every
// distance; a window of 256 does so up to what two layers of it reach, and guesses beyond.
//
// A dilated branch of rate r joins positions that agree mod r, each residue in the heads of that phase, and the longest
// segments have the largest rate. So that the task is fair, the values and questions of a sequence agree mod 4
// (--align), at a residue drawn for each sequence: every head has to learn the mechanism. With --align 1 they lie
// anywhere, and what follows a statement must take it over by the shortest branch first, which is harder to learn.
#include <cstdio>
#include <exception>
#include <iostream>

#include "examples/recall/recall_run.h"
#include "examples/support/progress.h"

int main(int argc, char** argv) {
  poolgrad::examples::RecallOptions options;
  const int code = poolgrad::examples::parse_recall_options(argc, argv, options);
  if (code >= 0) return code;
  try {
    poolgrad::examples::run_recall(options, std::cout, poolgrad::examples::Progress::is_terminal());
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}

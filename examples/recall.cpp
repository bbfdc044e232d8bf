// Why long contexts need long attention: values are stated with keys, and asked for by key thousands of tokens later.
//
//   recall                                              dilated attention at distance 4096
//   recall --compare causal,dilated,window              several, with the same sequences and budget
//   recall --preset needle                              a number hidden in a long text, 1024 tokens back
//   recall --distance 512 --attention window --window 64
//
// Expected of `--compare causal,dilated,window`: causal and dilated attention recall nearly everything at every
// distance; a window of 256 does so up to what two layers of it reach, and guesses beyond.
//
// A dilated branch of rate r joins positions that agree mod r, each residue in the heads of that phase, and the longest
// segments have the largest rate. So that the task is fair, the values and questions of a sequence agree mod 4
// (--align), at a residue drawn for each sequence: every head has to learn the mechanism. With --align 1 they lie
// anywhere, and what follows a statement must take it over by the shortest branch first, which is harder to learn.
#include "examples/recall/recall.h"
#include "examples/support/console.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  RecallOptions options;
  return run_program([&] { return parse_recall_options(argc, argv, options); },
                     [&](std::ostream& out, bool live) { run_recall(options, out, live); });
}

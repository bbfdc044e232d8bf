// Shows why layers should differ: a model must recall values by key up to 32,768 tokens later, after training on
// distances of at most 1,024.
//
//   recall                                             a window with positions, then a causal layer without
//   recall --layers "window,causal+nope;2*causal"      lists of layers, with the same sequences and budget
//   recall --attention causal,dilated,window           kinds of attention, two layers of each
//   recall --preset needle                             a number hidden in a long text
//   recall --distance 4096 --align 4 --tokens 8192 --attention dilated,window
//
// Expected: nearly every answer at distances up to 32,768, as far as at those of the training. Two windows guess beyond
// their reach.
//
// A dilated branch of rate r joins positions that agree mod r, each residue in the heads of that phase. For such
// attention --align 4 places the values and questions of a sequence at positions that agree mod 4, at a residue drawn
// for each sequence.
#include "examples/recall/recall.h"
#include "examples/support/console.h"

int main(int argc, char** argv) {
  using namespace poolgrad::examples;
  RecallOptions options;
  return run_program([&] { return parse_recall_options(argc, argv, options); },
                     [&](std::ostream& out, bool live) { run_recall(options, out, live); });
}

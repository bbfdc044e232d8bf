// The training text and the validation text, with weights and without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "allocator/base/address_sanitizer.h"
#include "allocator/base/owner_flag.h"
#include "nn/text/corpus.h"
#include "nn/text/ngram.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

std::string string_of(const Text& text) {
  const std::vector<std::int32_t> bytes = text.read(0, text.size());
  return {bytes.begin(), bytes.end()};
}

TEST(Corpus, ValidatesOnATenthOfTheFilesChosenBySeed) {
  const TemporaryFolder folder;
  for (int i = 0; i < 20; ++i)
    write_bytes(folder.file("f" + std::to_string(i)), std::string(3, static_cast<char>('a' + i)));
  std::filesystem::create_directory(folder.file("sub"));
  write_bytes(folder.file("sub/g"), "zzz");
  write_bytes(folder.file("binary"), std::string("a\0b", 3));
  write_bytes(folder.file(".hidden"), "hidden");
  const std::string path = std::filesystem::path(folder.file("x")).parent_path();
  const Corpus corpus = read_corpus({path}, 1), again = read_corpus({path}, 1), other = read_corpus({path}, 2);
  EXPECT_EQ(corpus.files, 21);
  ASSERT_EQ(corpus.texts.size(), 1u);
  const std::string train = string_of(corpus.texts[0].train), validation = string_of(corpus.texts[0].validation);
  EXPECT_EQ(train.size(), 19 * 3u);
  EXPECT_EQ(validation.size(), 2 * 3u);
  EXPECT_EQ(train, string_of(again.texts[0].train));
  EXPECT_NE(train, string_of(other.texts[0].train));
  for (const char byte : validation) EXPECT_EQ(train.find(byte), std::string::npos) << "a file is on one side only";
}

TEST(Corpus, WithAValidationTextOfItsOwnHoldsNothingOut) {
  const TemporaryFolder folder;
  write_bytes(folder.file("text"), "0123456789abcdefghij");
  write_bytes(folder.file("other"), "klm");
  write_bytes(folder.file("validation"), "xyz");
  const Corpus corpus = read_corpus({folder.file("text") + "=2", folder.file("other")}, 5, folder.file("validation"));
  ASSERT_EQ(corpus.texts.size(), 2u);
  EXPECT_EQ(string_of(corpus.texts[0].train), "0123456789abcdefghij");
  EXPECT_EQ(string_of(corpus.texts[0].validation_tokens), "xyz");
  EXPECT_EQ(string_of(corpus.texts[1].train), "klm");
  EXPECT_TRUE(corpus.texts[1].validation.empty());
  EXPECT_EQ(corpus.files, 2) << "to train on";
  EXPECT_THAT(error_of<ValueError>([&] { read_corpus({folder.file("text")}, 5, folder.file("text")); }),
              ::testing::HasSubstr("part of two texts"));
}

TEST(Corpus, ValidatesOnTheLastTenthOfASingleFile) {
  const TemporaryFolder folder;
  write_bytes(folder.file("text"), "0123456789abcdefghij");
  const Corpus corpus = read_corpus({folder.file("text")}, 5);
  EXPECT_EQ(string_of(corpus.texts[0].train), "0123456789abcdefgh");
  EXPECT_EQ(string_of(corpus.texts[0].validation), "ij");
}

TEST(Corpus, ValidatesOnTheLastTenthOfUnevenFiles) {
  const TemporaryFolder folder;
  write_bytes(folder.file("book"), std::string(1000, 'b'));
  write_bytes(folder.file("note"), "n");
  for (std::uint64_t seed = 0; seed < 8; ++seed) {  // whichever of the two is drawn
    const Corpus corpus = read_corpus({folder.file("")}, seed);
    EXPECT_EQ(corpus.texts[0].train.size(), 900) << seed;
    EXPECT_EQ(corpus.texts[0].validation.size(), 101) << seed;
  }
}

TEST(Corpus, RefusesPathsWithoutText) {
  const TemporaryFolder folder;
  const std::string missing = folder.file("missing"), empty = folder.file("empty");
  std::filesystem::create_directory(empty);
  EXPECT_EQ(error_of<FileError>([&] { read_corpus({missing}, 1); }), "[train] the text " + missing + " does not exist");
  EXPECT_EQ(error_of<FileError>([&] { read_corpus({empty}, 1); }),
            "[train] no text in " + empty + ": no file is there");
  const std::string zeros = folder.file("empty/wide"), nothing = folder.file("nothing");
  write_bytes(zeros, std::string("w\0i\0d\0e\0", 8));
  write_bytes(nothing, "");
  EXPECT_EQ(error_of<FileError>([&] { read_corpus({empty}, 1); }),
            "[train] no text in " + empty + ": every file is empty or has a 0 byte");
  write_bytes(folder.file("text"), "0123456789");
  EXPECT_EQ(error_of<FileError>([&] {
              read_corpus({folder.file("text"), zeros}, 1);
            }),
            "[train] no text in " + zeros + ": it has a 0 byte, as binary files and UTF-16 have")
      << "one that is asked for by name is not left out in silence";
  EXPECT_EQ(error_of<FileError>([&] { read_corpus({nothing}, 1); }), "[train] no text in " + nothing + ": it is empty");
}

TEST(Corpus, RefusesSpecialFiles) {
  EXPECT_EQ(error_of<FileError>([] { read_corpus({"/dev/null"}); }),
            "[train] /dev/null is neither a file nor a folder: text is read more than once");
}

TEST(Corpus, ReadsAFileOnceUnderSeveralPaths) {
  const TemporaryFolder folder;
  const std::string text = folder.file("text"), whole = folder.file("");
  write_bytes(text, "0123456789abcdefghij");
  const auto expect_one_file = [&](const std::vector<std::string>& sources) {
    const Corpus corpus = read_corpus(sources);
    EXPECT_EQ(corpus.files, 1);
    EXPECT_EQ(string_of(corpus.texts[0].train), "0123456789abcdefgh");
    EXPECT_EQ(string_of(corpus.texts[0].validation), "ij") << "what is held out is not trained on";
  };
  expect_one_file({text, text});
  expect_one_file({whole, text});
  expect_one_file({text, whole, folder.file("../" + std::filesystem::path(whole).parent_path().filename().string())});
  std::filesystem::create_symlink("text", folder.file("link"));
  std::filesystem::create_hard_link(text, folder.file("another name"));
  expect_one_file({whole});
  EXPECT_EQ(error_of<ValueError>([&] {
              read_corpus({whole + "=3", text});
            }),
            "[train] " + text + " is part of two texts, " + whole + " and " + text +
                ": it would be held out of one and trained on in the other");
  EXPECT_THAT(error_of<ValueError>([&] { read_corpus({text + "=3", text}); }), HasSubstr(" is part of two texts, "));

  const std::string binary = folder.file("binary");
  write_bytes(binary, std::string("a\0b", 3));
  expect_one_file({whole});
  EXPECT_THAT(error_of<FileError>([&] {
                read_corpus({whole, binary});
              }),
              HasSubstr("it has a 0 byte"))
      << "asked for by name, after it was found";
}

TEST(Corpus, ReadsOnlyTheStartOfABinaryFile) {
  const TemporaryFolder folder;
  write_bytes(folder.file("a_text"), std::string(100, 'x') + "\n");
  for (const char* name : {"binary1", "binary2"}) {
    write_bytes(folder.file(name), std::string(1, '\0'));
    std::filesystem::resize_file(folder.file(name), std::uintmax_t{1} << 32);  // uses no disk space
  }
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  const long before = faults();
  EXPECT_EQ(read_corpus({folder.file("")}, 1).files, 1);
  EXPECT_LT(faults() - before, 4096) << "a GiB of each is 16,384 times the 16 pages that a fault maps";
}

TEST(Corpus, DoesNotFollowLinksToFolders) {
  const TemporaryFolder folder;
  write_bytes(folder.file("text"), "0123456789");
  std::filesystem::create_directory(folder.file("below"));
  write_bytes(folder.file("below/more"), "abcdefghij");
  std::filesystem::create_directory_symlink(folder.file(""), folder.file("below/back_up"));
  std::filesystem::create_symlink(folder.file("nowhere"), folder.file("below/broken"));
  EXPECT_EQ(read_corpus({folder.file("")}, 1).files, 2);
}

TEST(Corpus, WithWeightsHasATextPerSource) {
  const TemporaryFolder folder;
  const std::string a = folder.file("a"), b = folder.file("b");
  write_bytes(a, std::string(100, 'a'));
  write_bytes(b, std::string(50, 'b'));
  const Corpus corpus = read_corpus({a + "=3", b}), plain = read_corpus({a, b});
  EXPECT_TRUE(corpus.weighted);
  ASSERT_EQ(corpus.texts.size(), 2u);
  EXPECT_EQ(string_of(corpus.texts[0].train), std::string(90, 'a'));
  EXPECT_EQ(string_of(corpus.texts[1].validation), std::string(5, 'b')) << "each holds out its own tenth";
  EXPECT_EQ(corpus.texts[0].weight, 3);
  EXPECT_EQ(corpus.texts[1].weight, 1);
  EXPECT_EQ(corpus.texts[0].path, a);
  EXPECT_EQ(corpus.describe_weights(), "3,1");
  EXPECT_EQ(corpus.train_bytes(), 90 + 45u);
  EXPECT_EQ(corpus.files, 2);
  EXPECT_FALSE(plain.weighted);
  EXPECT_EQ(plain.texts.size(), 1u);
  EXPECT_EQ(plain.describe_weights(), "");
}

TEST(Corpus, FingerprintIsAHashOfTheTrainingText) {
  const Text text(std::vector<std::uint8_t>{'a', 'b', 'c'});
  const Corpus corpus(text, text.part(0, 1));
  EXPECT_EQ(corpus.fingerprint(), "e71fa2190541574b") << "FNV-1a of abc, as checkpoints have it";
  EXPECT_TRUE(corpus.has_fingerprint(corpus.fingerprint()));
  EXPECT_FALSE(corpus.has_fingerprint("e71fa2190541574c"));
  EXPECT_TRUE(corpus.has_fingerprint("spread:3:e71fa2190541574b")) << "as a longer text would";
  EXPECT_FALSE(corpus.has_fingerprint("spread:4:e71fa2190541574b"));
}

TEST(TextSource, SplitsAtTheLastEqualsSignUnlessAFileHasThatName) {
  const TemporaryFolder folder;
  const std::string plain = folder.file("a"), equals = folder.file("a=2");
  write_bytes(plain, "text");
  const TextSource weighted = TextSource::parse(equals);
  EXPECT_EQ(weighted.path, plain);
  EXPECT_EQ(weighted.weight, 2.0);
  write_bytes(equals, "text");
  EXPECT_EQ(TextSource::parse(equals).path, equals) << "now there is something of that name";
  EXPECT_FALSE(TextSource::parse(equals).weight);
  EXPECT_EQ(TextSource::parse(equals + "=0.25").path, equals);
  EXPECT_EQ(TextSource::parse(equals + "=0.25").weight, 0.25);
  EXPECT_EQ(TextSource::parse("nowhere=2").path, "nowhere=2");
  for (const std::string weight : {"0", "-1", "nan", "inf", "two", "", "1e10", "1x"})
    EXPECT_EQ(error_of<ValueError>([&] { TextSource::parse(plain + "=" + weight); }),
              "[train] the weight of the text " + plain + " must be a number from 1e-9 to 1e9, but is " + weight);
}

TEST(Corpus, ReadsLargeFilesLikeSmallOnes) {
  const TemporaryFolder folder;
  std::string large;
  for (int i = 0; large.size() < 1500000; ++i) large += "line " + std::to_string(i) + "\n";
  write_bytes(folder.file("a"), "small\n");
  write_bytes(folder.file("b"), large);
  write_bytes(folder.file("c"), large + '\0');
  const std::string path = std::filesystem::path(folder.file("x")).parent_path();
  const CorpusText text = read_corpus({path}).texts.at(0);
  const std::string all = string_of(text.train) + string_of(text.validation);
  EXPECT_EQ(all.size(), large.size() + 6) << "a 0 byte at its end leaves a file out";
  EXPECT_TRUE(all == large + "small\n" || all == "small\n" + large);
  std::filesystem::resize_file(folder.file("b"), 5);
  EXPECT_THAT(error_of<FileError>([&] { string_of(text.train); }),
              HasSubstr("/b became shorter while it was read: 5 bytes of"));
}

TEST(Corpus, IsTokenizedPartByPart) {
  const Text train(std::vector<std::uint8_t>(1000, 'a'));
  Corpus corpus(train, train.part(0, 100));
  EXPECT_TRUE(corpus.of_bytes());
  const auto tokenizer = learn_tokenizer(corpus, 258);
  double last = 0;
  tokenize(corpus, tokenizer, [&](const std::string& what, double done) {
    EXPECT_EQ(what, "encoding the text");
    EXPECT_GE(done, last);
    last = done;
  });
  EXPECT_EQ(last, 1.0);
  EXPECT_FALSE(corpus.of_bytes());
  EXPECT_EQ(corpus.texts[0].train_tokens.size(), 250) << "two merges: aa and aaaa";
  EXPECT_EQ(corpus.texts[0].validation_tokens.size(), 25);
  EXPECT_EQ(corpus.texts[0].train.size(), 1000) << "the bytes stay";
}

#if !defined(POOLGRAD_ADDRESS_SANITIZER) && !defined(POOLGRAD_THREAD_SANITIZER)  // these use memory of their own

/// Returns KiB: the resident memory of the process, now or at its peak.
std::int64_t resident(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  return -1;
}

TEST(Corpus, LargerThanMemoryNeedsBoundedMemory) {
  constexpr std::int64_t file_kib = 128 << 10, bound_kib = 96 << 10;
  const TemporaryFolder folder;
  const std::string path = folder.file("large");
  {
    std::string block;
    for (int i = 0; block.size() < (1u << 20); ++i)
      block += "line " + std::to_string(i % 997 * 131 % 9973) + " of a text\n";
    block.resize(1 << 20);
    std::ofstream file(path, std::ios::binary);
    for (std::int64_t kib = 0; kib < file_kib; kib += 1024) file << block;
  }
  if (!(std::ofstream("/proc/self/clear_refs") << 5).flush()) GTEST_SKIP() << "no /proc/self/clear_refs";
  const std::int64_t before = resident("VmRSS");
  Corpus corpus = read_corpus({path});
  EXPECT_EQ(corpus.train_bytes() + corpus.validation_bytes(), static_cast<std::uint64_t>(file_kib) << 10);
  EXPECT_FALSE(corpus.fingerprint().empty());
  EXPECT_GT(ngram_baselines(corpus).trigram, 0.0);
  tokenize(corpus, learn_tokenizer(corpus, 300));
  EXPECT_GT(corpus.texts[0].train_tokens.size() * 2, 64 << 20) << "tokens take much, too";
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(corpus.texts[0].train_tokens.read(i * 100000, 512).size(), 512u);
  EXPECT_LT(resident("VmHWM") - before, bound_kib) << "of a text of " << file_kib << " KiB";
}

#endif

}  // namespace
}  // namespace poolgrad::nn

// Latency tables: compiled in, read from files by path, and hostile files. Calibration measures every call of a driver
// once per size and leaks nothing.
#include "allocator/memory/latency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <locale>
#include <thread>

#include "allocator/error.h"
#include "tests/allocator/memory/pages.h"
#include "tests/allocator/memory/recording_driver.h"

namespace poolgrad::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename Exception>
std::string message_of(const auto& function) {
  try {
    function();
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string complete() { return LatencyTable::named("unit").text(); }

std::string parse_error(const std::string& text) {
  return message_of<FileError>([&] { LatencyTable::parse(text, "some/table.txt"); });
}

TEST(LatencyTable, KnowsItsNames) { EXPECT_THAT(LatencyTable::names(), ElementsAre("unit", "h200")); }

TEST(LatencyTable, ChargesOneMicrosecondForEachCallInTheUnitTable) {
  const LatencyTable unit = LatencyTable::named("unit");
  EXPECT_EQ(unit.name, "unit");
  for (const auto& cost :
       {unit.reserve, unit.unreserve, unit.create, unit.release, unit.map, unit.set_access, unit.unmap, unit.malloc,
        unit.free, unit.event_record, unit.event_query, unit.stream_wait, unit.synchronize}) {
    EXPECT_EQ(cost.of(0), 1000);
    EXPECT_EQ(cost.of(std::size_t{1} << 40), 1000);
  }
}

TEST(LatencyTable, SaysThatItsH200FiguresAreNotMeasured) {
  const LatencyTable table = LatencyTable::named("h200");
  EXPECT_THAT(table.source, HasSubstr("not measured on an H200"));
  EXPECT_GT(table.set_access.call, table.map.call);
}

TEST(LatencyTable, AddsTheCostOfEachMebibyte) {
  const LatencyTable::Cost cost{.call = 100, .per_mib = 10};
  EXPECT_EQ(cost.of(0), 100);
  EXPECT_EQ(cost.of(std::size_t{3} << 20), 130);
  EXPECT_EQ(cost.of(std::size_t{1} << 19), 105);
}

TEST(LatencyTable, RoundTripsThroughText) {
  LatencyTable table = LatencyTable::named("h200");
  table.create = {.call = 12.5, .per_mib = 0.125};
  const LatencyTable again = LatencyTable::parse(table.text(), "/somewhere/mine.txt");
  EXPECT_EQ(again.name, "mine");
  EXPECT_EQ(again.source, table.source);
  EXPECT_EQ(again.create.call, 12.5);
  EXPECT_EQ(again.create.per_mib, 0.125);
  EXPECT_EQ(again.synchronize.call, table.synchronize.call);
  EXPECT_EQ(again.text(), table.text());
}

// With a locale of C and C++ whose decimal separator is a comma.
TEST(LatencyTable, IgnoresTheLocale) {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    std::string do_grouping() const override { return "\3"; }
  };
  LatencyTable table = LatencyTable::named("h200");
  table.create = {.call = 12345.5, .per_mib = 0.125};
  const std::string text = table.text();
  const std::filesystem::path locales = std::filesystem::temp_directory_path() / "poolgrad_latency_locales";
  std::filesystem::create_directories(locales);
  const std::string make = "localedef -i de_DE -f UTF-8 " + (locales / "de_DE.UTF-8").string() + " 2>/dev/null >&2";
  setenv("LOCPATH", locales.c_str(), 1);
  const bool made = std::system(make.c_str()) == 0 && std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
  EXPECT_EQ(table.text(), text);
  EXPECT_EQ(LatencyTable::parse(text, "a").create.call, 12345.5);
  EXPECT_EQ(LatencyTable::parse(text, "a").create.per_mib, 0.125);
  std::locale::global(before);
  std::setlocale(LC_ALL, "C");
  unsetenv("LOCPATH");
  std::filesystem::remove_all(locales);
  if (!made) GTEST_SKIP() << "no localedef: C++ streams alone were tried";
}

TEST(LatencyTable, IsReadFromAFile) {
  const std::string path = (std::filesystem::temp_directory_path() / "poolgrad_latency_test.txt").string();
  std::ofstream(path) << "# mine\r\n\r\n" << complete() << "  # the end\n";
  EXPECT_EQ(LatencyTable::named(path).name, "poolgrad_latency_test");
  std::filesystem::remove(path);
}

TEST(LatencyTable, ListsTheNamesWhenOneIsUnknown) {
  for (const char* name : {"h100", "", "/no/such/file", "/"}) {
    EXPECT_THAT(message_of<ValueError>([&] { LatencyTable::named(name); }), HasSubstr("known names: unit, h200"))
        << name;
  }
}

TEST(LatencyTable, NamesPathAndLineOfAnUnknownCall) {
  const std::string message = parse_error("# one\nfly 1 2\n");
  EXPECT_THAT(message, HasSubstr("some/table.txt, line 2"));
  EXPECT_THAT(message, HasSubstr("'fly'"));
  EXPECT_THAT(message, HasSubstr("known calls: source, reserve"));
}

TEST(LatencyTable, RefusesMalformedNumbers) {
  for (const char* number : {"-1", "nan", "inf", "1e13", "1ns", "0x", "one", "1e999"}) {
    EXPECT_THAT(parse_error(std::string("map ") + number + " 0\n"),
                HasSubstr("line 1: expected nanoseconds from 0 to 1e12"))
        << number;
    EXPECT_THAT(parse_error(std::string("map 0 ") + number + "\n"), HasSubstr("line 1: expected nanoseconds"))
        << number;
  }
}

TEST(LatencyTable, RefusesMissingAndSuperfluousWords) {
  EXPECT_THAT(parse_error("map 1\n"), HasSubstr("line 1: expected 'map <ns per call> <ns per MiB>'"));
  EXPECT_THAT(parse_error("map\n"), HasSubstr("line 1: expected"));
  EXPECT_THAT(parse_error("map 1 2 3\n"), HasSubstr("line 1: expected"));
  EXPECT_THAT(parse_error("map 1 2\nmap 1 2\n"), HasSubstr("line 2: duplicate line for map"));
  EXPECT_THAT(parse_error("source a\nsource b\n"), HasSubstr("line 2: duplicate source"));
}

TEST(LatencyTable, NamesAMissingCall) {
  EXPECT_THAT(parse_error(""), HasSubstr("line 1: the file ends without a line for reserve"));
  std::string text = complete();
  text.erase(text.find("unmap"));
  EXPECT_THAT(parse_error(text), HasSubstr("the file ends without a line for unmap"));
}

TEST(LatencyTable, ShowsNoControlCharactersOfAHostileFile) {
  const std::string message = parse_error("\x1b[31m" + std::string(100000, 'x') + " 1 2\n");
  EXPECT_THAT(message, Not(HasSubstr("\x1b")));
  EXPECT_LT(message.size(), 400u);
}

TEST(LatencyTable, RefusesFilesThatAreTooLargeForATable) {
  const std::string path = (std::filesystem::temp_directory_path() / "poolgrad_latency_huge.txt").string();
  std::ofstream(path).close();
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);
  EXPECT_THAT(message_of<FileError>([&] { LatencyTable::named(path); }), HasSubstr("too large"));
  std::filesystem::remove(path);
}

constexpr CalibrationOptions quick{.repetitions = 3, .small_bytes = page, .large_bytes = 4 * page};

TEST(Calibration, MeasuresEveryCallOfATable) {
  RecordingDriver driver(16 * page);
  const LatencyTable table = calibrate(driver, quick);
  for (const auto& cost :
       {table.reserve, table.unreserve, table.create, table.release, table.map, table.set_access, table.unmap,
        table.malloc, table.free, table.event_record, table.event_query, table.stream_wait, table.synchronize}) {
    EXPECT_GT(cost.of(page), 0);
    EXPECT_GE(cost.call, 0);
    EXPECT_GE(cost.per_mib, 0);
  }
  EXPECT_EQ(driver.objects(), 0);
  EXPECT_EQ(driver.memory_info().free, 16 * page);
}

TEST(Calibration, GivesATableThatTheSimulatorReads) {
  RecordingDriver driver(16 * page);
  const LatencyTable table = calibrate(driver, quick);
  const LatencyTable again = LatencyTable::parse(table.text(), "measured.txt");
  EXPECT_THAT(again.source, ::testing::HasSubstr("medians of 3"));
  EXPECT_NEAR(again.create.of(page), table.create.of(page), 0.1);
}

// A driver whose cudaMalloc takes longer for more bytes: the line through two sizes shows both costs.
TEST(Calibration, SeparatesTheCostPerCallFromTheCostPerMebibyte) {
  struct Slow : RecordingDriver {
    using RecordingDriver::RecordingDriver;
    std::uintptr_t malloc(std::size_t bytes) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(1) * (bytes / page));
      return RecordingDriver::malloc(bytes);
    }
  };
  Slow driver(16 * page);
  const LatencyTable table = calibrate(driver, quick);
  EXPECT_GT(table.malloc.of(4 * page), 4e6);
  EXPECT_GT(table.malloc.per_mib, 0);
}

TEST(Calibration, FreesAllBlocksWhenMemoryRunsOut) {
  RecordingDriver driver(2 * page);
  EXPECT_THROW(calibrate(driver, quick), OutOfMemoryError);
  EXPECT_EQ(driver.objects(), 0);
}

TEST(Calibration, RefusesSizesThatTheDeviceCannotGive) {
  RecordingDriver driver(16 * page);
  EXPECT_THROW(calibrate(driver, {.small_bytes = 100, .large_bytes = page}), ValueError);
  EXPECT_THROW(calibrate(driver, {.small_bytes = page, .large_bytes = page}), ValueError);
  EXPECT_THROW(calibrate(driver, {.repetitions = 0}), ValueError);
}

}  // namespace
}  // namespace poolgrad::testing

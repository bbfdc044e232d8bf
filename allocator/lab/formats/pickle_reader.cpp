// A pickle machine for plain data: dictionaries, lists, tuples, texts and numbers, as PyTorch and Python's pickle write
// them (protocols 2 to 5). It supports no opcode that makes an object or calls a function.
#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "allocator/lab/formats/value_tree.h"
#include "allocator/trace/bytes.h"

namespace poolgrad {

namespace {

enum Opcode : std::uint8_t {
  mark = '(',
  stop = '.',
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  none = 'N',
  binunicode = 'X',
  append = 'a',
  dict = 'd',
  empty_dict = '}',
  appends = 'e',
  binget = 'h',
  long_binget = 'j',
  list = 'l',
  empty_list = ']',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  empty_tuple = ')',
  setitems = 'u',
  binfloat = 'G',
  proto = 0x80,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  long1 = 0x8a,
  short_binunicode = 0x8c,
  memoize = 0x94,
  frame = 0x95
};

class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, const std::string& path, ValueTree& tree, const EntrySink& sink)
      : in_(bytes, path), tree_(tree), sink_(sink) {}

  void run() {
    do {
      at_ = in_.offset();
    } while (step(in_.u8("opcode")));
  }

 private:
  [[noreturn, gnu::noinline]] void fail(const std::string& reason) const { in_.fail_at(at_, reason); }

  void push(Value value) { stack_.push_back(value); }
  void push_integer(std::uint64_t bits, bool negative = false) { push({ValueKind::integer, negative, bits}); }
  Value pop() {
    need(1);
    const Value value = stack_.back();
    stack_.pop_back();
    return value;
  }
  // Throws unless the stack has this many values above the last mark.
  void need(std::size_t values) const {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < values) fail("the pickle's stack is too short");
  }
  std::size_t pop_mark() {
    if (marks_.empty()) fail("no mark on the pickle's stack");
    const std::size_t height = marks_.back();
    marks_.pop_back();
    return height;
  }
  Value make(ValueKind kind) {
    if (!tree_.may_grow()) fail("more lists and dictionaries than a snapshot of this size has");
    return tree_.container(kind);
  }
  Value top(ValueKind kind) const {
    need(1);
    if (stack_.back().kind != kind) fail(kind == ValueKind::list ? "no list to append to" : "no dictionary to set");
    return stack_.back();
  }
  // Moves the values from `height` into a container; a dictionary takes pairs.
  void move_into(Value container, std::size_t height) {
    if (container.kind == ValueKind::dict && (stack_.size() - height) % 2 != 0) fail("a key without a value");
    std::vector<Value>& items = tree_.items(container);
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(height);
    items.insert(items.end(), from, stack_.end());
    stack_.erase(from, stack_.end());
  }
  void make_from(ValueKind kind, std::size_t height) {
    const Value container = make(kind);
    move_into(container, height);
    push(container);
  }
  void make_tuple(std::size_t size) {
    need(size);
    make_from(ValueKind::list, stack_.size() - size);
  }
  void extend(ValueKind kind) {
    const std::size_t height = pop_mark();
    std::vector<Value> values(stack_.begin() + static_cast<std::ptrdiff_t>(height), stack_.end());
    stack_.resize(height);
    const Value container = top(kind);
    stack_.insert(stack_.end(), values.begin(), values.end());
    move_into(container, height);
  }
  // Whether the list at this place of the stack is in the list `device_traces`; finds its index there. Marks may lie in
  // between: "device_traces" [ ( earlier lists, the list. `mark` is the last one below the list.
  bool find_device(std::size_t at, std::size_t mark) {
    const auto all_at = [&](std::size_t place) {
      return stack_[place - 1].kind == ValueKind::text && stack_[place].kind == ValueKind::list &&
             std::as_const(tree_).text_of(stack_[place - 1]) == "device_traces";
    };
    const bool marked = mark >= 2 && mark <= at && all_at(mark - 1);
    if (!marked && (at < 2 || !all_at(at - 1))) return false;
    const Value all = stack_[marked ? mark - 1 : at - 1];
    device_ = std::as_const(tree_).items(all).size() + (marked ? at - mark : 0);
    return true;
  }
  // Passes an entry to the sink: the pairs above the last mark, of a dictionary of a list of `device_traces`.
  bool sink_entry() {
    if (!sink_ || marks_.empty() || marks_.back() < 4) return false;
    const std::size_t pairs = marks_.back(), at = pairs - 1;
    const Value dict = stack_[at], list = stack_[at - 1];
    if (dict.kind != ValueKind::dict || list.kind != ValueKind::list) return false;
    std::size_t marks = marks_.size() - 1;
    const bool several = marks > 0 && marks_[marks - 1] == at;  // entries follow a mark; a single one has none
    if (several) --marks;
    if (list.bits != entry_list_ || entries_ == 0) {
      if (!find_device(at - 1, marks > 0 ? marks_[marks - 1] : 0)) return false;
      entry_list_ = list.bits;
      entries_ = 0;
    }
    if (!std::as_const(tree_).items(dict).empty()) return false;
    if ((stack_.size() - pairs) % 2 != 0) fail("a key without a value");
    sink_(device_, entries_++, std::span<const Value>(stack_).subspan(pairs));
    stack_.resize(several ? at : pairs);
    if (!several) stack_.back() = {};  // for `append`
    marks_.pop_back();
    // Nothing may refer to the dictionary, except one memo number, which ends here.
    const bool memoized = memoized_ == dict.bits + 1;
    if (memoized_ > dict.bits + 1 || (memoized && has_copies_) || !tree_.remove_newest(dict)) return true;
    if (memoized) {
      memo_[memo_number_] = unset;
      memoized_ = dict.bits;
      has_copies_ = true;  // older dictionaries may have any number of references
    }
    return true;
  }
  void put(std::uint64_t index) {
    need(1);
    if (stack_.back().kind == ValueKind::dict && stack_.back().bits + 1 >= memoized_) {
      has_copies_ = std::exchange(memoized_, stack_.back().bits + 1) == stack_.back().bits + 1;
      memo_number_ = index;
    }
    if (index > in_.offset()) fail("memo number " + std::to_string(index) + " is too large for this pickle");
    if (index >= memo_.size()) memo_.resize(index + 1, unset);
    memo_[index] = stack_.back();
  }
  void get(std::uint64_t index) {
    if (index >= memo_.size() || memo_[index].kind == unset.kind)
      fail("memo number " + std::to_string(index) + " was never set");
    push(memo_[index]);
    if (stack_.back().kind == ValueKind::dict && stack_.back().bits + 1 == memoized_) has_copies_ = true;
  }
  void read_long() {
    const std::string_view bytes = in_.take(in_.u8("length of an integer"), "integer");
    const bool negative = !bytes.empty() && static_cast<std::uint8_t>(bytes.back()) >= 0x80;
    std::uint64_t bits = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
      const auto byte = static_cast<std::uint8_t>(bytes[i]);
      if (i < 8) bits = bits << 8 | byte;
      if (i >= 8 && byte != (negative ? 0xff : 0)) fail("an integer of more than 64 bits");
    }
    if (negative && bytes.size() >= 8 && bits >> 63 == 0) fail("an integer of more than 64 bits");
    push_integer(bits, negative);
  }

  // Inlines the operations of the stack: an entry needs about forty.
  [[gnu::flatten]] bool step(std::uint8_t opcode);

  static constexpr Value unset{static_cast<ValueKind>(0xff), false, 0};
  ByteReader in_;
  ValueTree& tree_;
  const EntrySink& sink_;
  std::uint64_t entry_list_ = 0;  // the list of the newest entry
  std::size_t entries_ = 0;       // of that list
  std::size_t device_ = 0;        // index of that list
  std::uint64_t memoized_ = 0;    // no dictionary from this number on has a memo number
  std::size_t memo_number_ = 0;   // of dictionary memoized_ - 1
  bool has_copies_ = false;       // that dictionary may have references besides that number and its place on the stack
  std::vector<Value> stack_, memo_;
  std::vector<std::size_t> marks_;
  std::size_t at_ = 0;  // of the opcode
};

bool PickleMachine::step(std::uint8_t opcode) {
  switch (opcode) {
    case proto: {
      const unsigned version = in_.u8("protocol");
      if (version < 2 || version > 5) fail("pickle protocol " + std::to_string(version) + ", known are 2 to 5");
      break;
    }
    case frame: in_.u64("frame"); break;
    case mark: marks_.push_back(stack_.size()); break;
    case empty_dict: push(make(ValueKind::dict)); break;
    case empty_list:
    case empty_tuple: push(make(ValueKind::list)); break;
    case dict: make_from(ValueKind::dict, pop_mark()); break;
    case list:
    case tuple: make_from(ValueKind::list, pop_mark()); break;
    case tuple1: make_tuple(1); break;
    case tuple2: make_tuple(2); break;
    case tuple3: make_tuple(3); break;
    case setitem: {
      need(3);
      const std::size_t height = stack_.size() - 2;
      if (stack_[height - 1].kind != ValueKind::dict) fail("no dictionary to set");
      move_into(stack_[height - 1], height);
      break;
    }
    case append: {
      const Value value = pop();
      tree_.items(top(ValueKind::list)).push_back(value);
      break;
    }
    case setitems:
      if (!sink_entry()) extend(ValueKind::dict);
      break;
    case appends: extend(ValueKind::list); break;
    case binunicode: push(tree_.text(in_.take(in_.u32("length of a text"), "text"))); break;
    case short_binunicode: push(tree_.text(in_.take(in_.u8("length of a text"), "text"))); break;
    case binint: {
      const auto value = static_cast<std::int32_t>(in_.u32("integer"));
      push_integer(static_cast<std::uint64_t>(std::int64_t{value}), value < 0);
      break;
    }
    case binint1: push_integer(in_.u8("integer")); break;
    case binint2: push_integer(in_.u16("integer")); break;
    case long1: read_long(); break;
    case binfloat: push({ValueKind::real, false, __builtin_bswap64(in_.u64("number"))}); break;
    case newtrue: push({ValueKind::boolean, false, 1}); break;
    case newfalse: push({ValueKind::boolean, false, 0}); break;
    case none: push({}); break;
    case binput: put(in_.u8("memo number")); break;
    case long_binput: put(in_.u32("memo number")); break;
    case memoize: put(memo_.size()); break;
    case binget: get(in_.u8("memo number")); break;
    case long_binget: get(in_.u32("memo number")); break;
    case stop: tree_.root = pop(); return false;
    default: {
      std::array<char, 8> text{};
      std::snprintf(text.data(), text.size(), "0x%02x", opcode);
      fail("pickle opcode " + std::string(text.data()) + ", which plain data does not need");
    }
  }
  return true;
}

}  // namespace

void read_pickle(std::string_view bytes, const std::string& path, ValueTree& tree, const EntrySink& sink) {
  PickleMachine(bytes, path, tree, sink).run();
}

}  // namespace poolgrad

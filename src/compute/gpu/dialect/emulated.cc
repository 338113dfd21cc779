#include "compute/gpu/dialect/emulated.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>

#if defined(__SANITIZE_ADDRESS__)
#define ESPALIER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ESPALIER_ASAN 1
#endif
#endif
#ifdef ESPALIER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace espalier::gpu::emulated {
namespace {

// More than any GPU gives a thread, less than a kernel that recurses or keeps large arrays takes.
constexpr std::size_t kStackBytes = std::size_t{64} << 10;

// A reader of a byte: several threads of this epoch, or of several blocks of this launch.
constexpr std::uint32_t kSeveralThreads = 0xfffffffe;
constexpr std::uint32_t kSeveralBlocks = 0xffffffff;

std::atomic<std::uint32_t> last_epoch = 1;  // 1 is what the host writes before a launch

// The stacks of a block's threads, each above a page that faults.
class Stacks {
 public:
  explicit Stacks(std::size_t count)
      : guard_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))), size_(count * stride()) {
    void* mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return;
    memory_ = static_cast<std::byte*>(mapped);
    for (std::size_t i = 0; i < count; ++i) {
      if (mprotect(memory_ + i * stride(), guard_, PROT_NONE) != 0) guarded_ = false;
    }
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() {
    if (memory_ == nullptr) return;
#ifdef ESPALIER_ASAN
    __asan_unpoison_memory_region(memory_, size_);  // threads leave their frames behind
#endif
    munmap(memory_, size_);
  }

  [[nodiscard]] bool ok() const { return memory_ != nullptr && guarded_; }
  [[nodiscard]] std::byte* stack(std::size_t i) const { return memory_ + i * stride() + guard_; }

 private:
  [[nodiscard]] std::size_t stride() const { return guard_ + kStackBytes; }

  std::size_t guard_;
  std::size_t size_;
  std::byte* memory_ = nullptr;
  bool guarded_ = true;
};

enum class State { kReady, kAtBarrier, kInWarp, kDone };

// A thread of the block.
struct Fibre {
  ucontext_t context{};
  std::byte* stack = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  State state = State::kReady;
  Place place;               // where it waits
  std::uint32_t bits = 0;    // what it brings to the warp's operation; then its result
  std::uint32_t source = 0;  // the lane whose bits it wants
};

constexpr std::uint32_t kBallot = 0xffffffff;  // as a source: the votes of all

class Machine;
thread_local Machine* machine = nullptr;

// One launch.
class Machine {
 public:
  Machine(const Kernel& kernel, const Grid& grid)
      : kernel_(kernel),
        grid_(grid),
        stacks_(grid.threads),
        fibres_(grid.threads),
        memory_bytes_(kernel.memory_bytes) {
    shared_.name = "shared memory";
    shared_.bytes = memory_bytes_.data();
    shared_.states.resize(memory_bytes_.size());
  }

  Status run() {
    if (!stacks_.ok()) return work_error("{}: no memory for its threads' stacks", kernel_.name);
    machine = this;
    for (std::size_t i = 0; i < fibres_.size(); ++i) prepare(i);
    launch_epoch_ = next_epoch();
    for (block_y_ = 0; block_y_ < grid_.blocks_y && error_.empty(); ++block_y_) {
      for (block_x_ = 0; block_x_ < grid_.blocks_x && error_.empty(); ++block_x_) run_block();
    }
    machine = nullptr;
    if (!error_.empty()) return work_error("{}", error_);
    return {};
  }

  // --- For the running thread ---

  [[nodiscard]] std::uint32_t running() const { return running_; }
  [[nodiscard]] Watched& shared() { return shared_; }
  [[nodiscard]] Fibre& fibre() { return fibres_[running_]; }

  // Gives control back to the loop over threads.
  void suspend() {
    Fibre& fibre = fibres_[running_];
#ifdef ESPALIER_ASAN
    __sanitizer_start_switch_fiber(&fibre.fake_stack, main_stack_, main_stack_bytes_);
#endif
    swapcontext(&fibre.context, &main_);
#ifdef ESPALIER_ASAN
    __sanitizer_finish_switch_fiber(fibre.fake_stack, &main_stack_, &main_stack_bytes_);
#endif
  }

  // Ends the launch. The running thread, and with it all others, never goes on.
  [[noreturn]] void fail(std::string what) {
    set_error(running_, std::move(what));  // leaves no memory on the stack that is given up
    for (;;) suspend();
  }

  void check_access(Watched& memory, std::int64_t offset, std::size_t size, Access access) {
    const char* verb = access == Access::kRead ? "reads" : "writes";
    const auto elements = memory.states.size() / size;
    const auto index = offset / static_cast<std::int64_t>(size);
    if (offset < 0 || static_cast<std::uint64_t>(offset) + size > memory.states.size()) {
      fail(fmt::format("{} element {} of {}, which has {}", verb, index, memory.name, elements));
    }
    if (offset % static_cast<std::int64_t>(size) != 0) {
      fail(fmt::format("{} {} bytes at byte {} of {}, which is not aligned", verb, size, offset,
                       memory.name));
    }
    for (std::size_t i = 0; i < size; ++i) {
      ByteState& byte = memory.states[static_cast<std::size_t>(offset) + i];
      if (access == Access::kRead && byte.written == 0) {
        fail(fmt::format("reads element {} of {}, which nobody wrote", index, memory.name));
      }
      const char* other = conflict(byte.written, byte.writer);
      const char* did = "wrote";
      if (other == nullptr && access == Access::kWrite) {
        other = conflict(byte.read, byte.reader);
        did = "read";
      }
      if (other != nullptr) {
        fail(fmt::format("{} element {} of {}, which another {} {} with no barrier between", verb,
                         index, memory.name, other, did));
      }
      note(byte, access);
    }
  }

 private:
  static std::uint32_t next_epoch() { return ++last_epoch; }

  // What kind of other party touched the byte at `epoch` as `who` with no barrier since, if one
  // did.
  [[nodiscard]] const char* conflict(std::uint32_t epoch, std::uint32_t who) const {
    if (epoch == epoch_) {
      if (who == kSeveralBlocks) return "block";
      return who == running_ ? nullptr : "thread";
    }
    if (epoch < launch_epoch_) return nullptr;
    return epoch < block_epoch_ || who == kSeveralBlocks ? "block" : nullptr;
  }

  void note(ByteState& byte, Access access) const {
    if (access == Access::kWrite) {
      byte.written = epoch_;
      byte.writer = running_;
      return;
    }
    if (byte.read == epoch_ && byte.reader != running_) {
      if (byte.reader != kSeveralBlocks) byte.reader = kSeveralThreads;
    } else if (byte.read >= launch_epoch_ &&
               (byte.read < block_epoch_ || byte.reader == kSeveralBlocks)) {
      byte.reader = kSeveralBlocks;
    } else {
      byte.reader = running_;
    }
    byte.read = epoch_;
  }

  void prepare(std::size_t i) {
    Fibre& fibre = fibres_[i];
    fibre.stack = stacks_.stack(i);
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack;
    fibre.context.uc_stack.ss_size = kStackBytes;
    fibre.context.uc_link = nullptr;
    makecontext(&fibre.context, &Machine::thread_main, 0);
  }

  // The life of a thread: its part of one block after the other.
  static void thread_main() {
    Machine& m = *machine;
#ifdef ESPALIER_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &m.main_stack_, &m.main_stack_bytes_);
#endif
    for (;;) {
      m.kernel_.run(m.kernel_.context, m.running_, m.grid_, m.block_x_, m.block_y_,
                    m.memory_bytes_.data());
      m.fibre().state = State::kDone;
      m.suspend();
    }
  }

  void resume(std::uint32_t thread) {
    running_ = thread;
    Fibre& fibre = fibres_[thread];
#ifdef ESPALIER_ASAN
    __sanitizer_start_switch_fiber(&main_fake_stack_, fibre.stack, kStackBytes);
#endif
    swapcontext(&main_, &fibre.context);
#ifdef ESPALIER_ASAN
    __sanitizer_finish_switch_fiber(main_fake_stack_, nullptr, nullptr);
#endif
  }

  void run_block() {
    epoch_ = block_epoch_ = next_epoch();
    std::fill(memory_bytes_.begin(), memory_bytes_.end(), std::byte{0xff});
    std::fill(shared_.states.begin(), shared_.states.end(), ByteState{});
    for (Fibre& fibre : fibres_) fibre.state = State::kReady;
    while (error_.empty()) {
      for (std::uint32_t t = 0; t < fibres_.size() && error_.empty(); ++t) {
        if (fibres_[t].state == State::kReady) resume(t);
      }
      if (!error_.empty() || finish_warp_operations()) continue;
      if (!threads_agree(0, fibres_.size())) return;
      if (fibres_[0].state == State::kDone) return;
      epoch_ = next_epoch();
      for (Fibre& fibre : fibres_) fibre.state = State::kReady;
    }
  }

  // Gives the warps whose lanes have all come to an operation its results. Whether there was one.
  bool finish_warp_operations() {
    bool any = false;
    for (std::size_t first = 0; first < fibres_.size(); first += kWarpThreads) {
      const auto warp = std::span(fibres_).subspan(first, kWarpThreads);
      if (std::none_of(warp.begin(), warp.end(),
                       [](const Fibre& f) { return f.state == State::kInWarp; })) {
        continue;
      }
      any = true;
      if (!threads_agree(first, kWarpThreads)) return true;
      std::uint32_t before[kWarpThreads];
      std::uint32_t votes = 0;
      for (std::uint32_t l = 0; l < kWarpThreads; ++l) {
        before[l] = warp[l].bits;
        votes |= (before[l] & 1u) << l;
      }
      for (Fibre& fibre : warp) {
        fibre.bits = fibre.source == kBallot       ? votes
                     : fibre.source < kWarpThreads ? before[fibre.source]
                                                   : 0xffffffffu;
        fibre.state = State::kReady;
      }
    }
    return any;
  }

  // Whether `count` threads all wait at the same place, or are all done; otherwise it is an error.
  bool threads_agree(std::size_t first, std::size_t count) {
    const auto same = [](const Fibre& a, const Fibre& b) {
      return a.state == b.state && (a.state == State::kDone || a.place == b.place);
    };
    std::size_t other = first;
    while (other < first + count && same(fibres_[first], fibres_[other])) ++other;
    if (other == first + count) return true;
    std::size_t waiting = first;
    if (fibres_[waiting].state == State::kDone) std::swap(waiting, other);
    set_error(waiting,
              fmt::format("waits at {}, but thread {} {}", text(fibres_[waiting].place), other,
                          fibres_[other].state == State::kDone
                              ? "has ended"
                              : "waits at " + text(fibres_[other].place)));
    return false;
  }

  static std::string text(const Place& place) {
    const std::string_view file = place.file;
    return fmt::format("{} of {}:{}", place.operation, file.substr(file.rfind('/') + 1),
                       place.line);
  }

  void set_error(std::size_t thread, std::string what) {
    error_ = fmt::format("{}: block ({}, {}), thread {}: {}", kernel_.name, block_x_, block_y_,
                         thread, what);
  }

  const Kernel& kernel_;
  const Grid& grid_;
  Stacks stacks_;
  std::vector<Fibre> fibres_;
  std::vector<std::byte> memory_bytes_;
  Watched shared_;
  ucontext_t main_{};
  void* main_fake_stack_ = nullptr;
  const void* main_stack_ = nullptr;
  std::size_t main_stack_bytes_ = 0;

  std::string error_;
  std::uint32_t running_ = 0;
  std::uint32_t block_x_ = 0, block_y_ = 0;
  std::uint32_t launch_epoch_ = 0;  // the first of this launch, of this block, and the present one
  std::uint32_t block_epoch_ = 0;
  std::uint32_t epoch_ = 0;
};

}  // namespace

void check_access(Watched& memory, std::int64_t offset, std::size_t size, Access access) {
  machine->check_access(memory, offset, size, access);
}

void check_index(std::int64_t index, std::int64_t count) {
  if (index >= 0 && index < count) return;
  machine->fail(fmt::format("touches element {} of a shared array, which has {}", index, count));
}

Watched& shared_memory() { return machine->shared(); }

std::uint32_t running_lane() { return machine->running() % kWarpThreads; }

void meet_block(const Place& place) {
  Fibre& fibre = machine->fibre();
  fibre.place = place;
  fibre.state = State::kAtBarrier;
  machine->suspend();
}

std::uint32_t meet_warp(const Place& place, std::uint32_t bits, std::uint32_t from) {
  Fibre& fibre = machine->fibre();
  fibre.place = place;
  fibre.bits = bits;
  fibre.source = from;
  fibre.state = State::kInWarp;
  machine->suspend();
  return fibre.bits;
}

std::uint32_t meet_ballot(const Place& place, bool vote) {
  return meet_warp(place, vote ? 1 : 0, kBallot);
}

Buffer::Buffer(std::string name, std::size_t size) : bytes_(size, std::byte{0xff}) {
  watched_.name = std::move(name);
  watched_.bytes = bytes_.data();
  watched_.states.resize(size);
}

void Buffer::mark_written() {
  for (ByteState& state : watched_.states) state.written = 1;
}

std::optional<std::size_t> Buffer::first_unwritten() const {
  const auto found = std::find_if(watched_.states.begin(), watched_.states.end(),
                                  [](const ByteState& state) { return state.written == 0; });
  if (found == watched_.states.end()) return std::nullopt;
  return static_cast<std::size_t>(found - watched_.states.begin());
}

Status run(const Kernel& kernel, const Grid& grid) {
  const bool fits = grid.blocks_x > 0 && grid.blocks_x <= kMostBlocksX && grid.blocks_y > 0 &&
                    grid.blocks_y <= kMostBlocksY && grid.threads > 0 &&
                    grid.threads <= kMostThreads && grid.threads % kWarpThreads == 0;
  if (!fits) {
    return work_error("{}: a grid of {} × {} blocks of {} threads, which no GPU runs", kernel.name,
                      grid.blocks_x, grid.blocks_y, grid.threads);
  }
  return Machine(kernel, grid).run();
}

}  // namespace espalier::gpu::emulated

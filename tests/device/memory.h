// Memory of the simulated device: one arena per device that the host cannot touch, and pinned host memory.
//
// The arena is mapped without any right of access. A kernel or a copy opens the blocks of its operands and closes them
// again, so code that reads device memory behind PyTorch's back (NumPy, ctypes, a C++ extension for CPUs) ends in a
// segmentation fault, as on a GPU, instead of quietly getting the right answer. Blocks are whole pages.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <cstring>
#include <map>
#include <set>

#include "clock.h"

namespace sim {

constexpr size_t kArena = 64ull << 40; // address space, not memory: 64 TB for both devices
constexpr size_t kPage = 4096;

inline int& current_device() {
  static thread_local int device = 0;
  return device;
}

struct Arena {
  char* begin = nullptr;
  size_t end = 0;                         // bytes handed out so far
  std::multimap<size_t, char*> free;      // blocks to use again, by size
  std::map<char*, size_t> sizes;          // of every block
  std::map<char*, int> open;              // blocks that a kernel is using, and how many do
  size_t bytes = 0, peak = 0;             // in use, and the most that ever was
  size_t capacity = 80ull << 30;          // beyond it the device is out of memory

  char* take(size_t wanted) {
    const size_t size = std::max(kPage, (wanted + kPage - 1) / kPage * kPage);
    TORCH_CHECK_WITH(
        OutOfMemoryError, bytes + size <= capacity, "sim out of memory. Tried to allocate ", wanted, " bytes: ",
        bytes, " of ", capacity, " bytes are in use");
    if (begin == nullptr) {
      void* got = mmap(nullptr, kArena / kDevices, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TORCH_CHECK(got != MAP_FAILED, "the simulated device could not reserve its address space");
      begin = static_cast<char*>(got);
    }
    char* block;
    auto found = free.lower_bound(size);
    if (found != free.end() && found->first <= size + size / 4) {
      block = found->second;
      free.erase(found);
    } else {
      block = begin + end;
      end += size;
      sizes[block] = size;
    }
    bytes += sizes[block];
    peak = std::max(peak, bytes);
    ++state().counters.allocations;
    return block;
  }

  void give_back(char* block) {
    const size_t size = sizes[block];
    bytes -= size;
    if (size >= (1u << 20)) madvise(block, size, MADV_DONTNEED);
    free.emplace(size, block);
  }

  bool holds(const void* p) const { return begin != nullptr && p >= begin && p < begin + end; }
};

inline Arena& arena(int device) {
  static auto* all = new std::array<Arena, kDevices>;
  return (*all)[device];
}

inline int device_of(const void* p) {
  for (int device = 0; device < kDevices; ++device)
    if (arena(device).holds(p)) return device;
  return -1;
}

// The lock of the arenas and of pinned memory alone. Python gives tensors back while it holds its own lock (the GIL), so
// this one is never held where Python can be called: a kernel that lets go of a tensor waits for the GIL inside `lock()`.
inline std::mutex& memory_lock() {
  static auto* one = new std::mutex;
  return *one;
}

// Blocks that may be read and written while this object lives. A kernel inside a kernel may open the same ones.
class Opened {
 public:
  Opened() = default;
  Opened(const Opened&) = delete;
  ~Opened() {
    std::lock_guard guard(memory_lock());
    for (auto& [arena, block] : blocks_)
      if (--arena->open[block] == 0) {
        mprotect(block, arena->sizes[block], PROT_NONE);
        arena->open.erase(block);
      }
  }
  void add(const void* p) {
    std::lock_guard guard(memory_lock());
    const int device = device_of(p);
    if (device < 0) return;
    auto& a = arena(device);
    char* block = std::prev(a.sizes.upper_bound(static_cast<char*>(const_cast<void*>(p))))->first;
    if (++a.open[block] == 1) mprotect(block, a.sizes[block], PROT_READ | PROT_WRITE);
    blocks_.emplace_back(&a, block);
  }

 private:
  std::vector<std::pair<Arena*, char*>> blocks_;
};

// ---- as PyTorch wants it

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    std::lock_guard guard(memory_lock());
    const int device = current_device();
    char* block = size == 0 ? nullptr : arena(device).take(size);
    return {block, block, &release, c10::Device(c10::DeviceType::PrivateUse1, device)};
  }
  static void release(void* block) {
    if (block == nullptr) return;
    std::lock_guard guard(memory_lock());
    arena(device_of(block)).give_back(static_cast<char*>(block));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t count) const override {
    std::lock_guard guard(lock());
    Opened opened;
    opened.add(target);
    opened.add(source);
    std::memcpy(target, source, count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto& a = arena(device);
    for (auto* each : {&stats.allocated_bytes[0], &stats.reserved_bytes[0], &stats.active_bytes[0]}) {
      each->current = static_cast<int64_t>(a.bytes);
      each->peak = static_cast<int64_t>(a.peak);
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { arena(device).peak = arena(device).bytes; }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {arena(device).capacity - arena(device).bytes, arena(device).capacity};
  }
};

struct PinnedMemory final : c10::Allocator { // ordinary memory that knows its own addresses
  static std::map<char*, size_t>& blocks() {
    static auto* all = new std::map<char*, size_t>;
    return *all;
  }
  static bool holds(const void* p) {
    std::lock_guard guard(memory_lock());
    auto after = blocks().upper_bound(static_cast<char*>(const_cast<void*>(p)));
    return after != blocks().begin() && std::prev(after)->first + std::prev(after)->second > p;
  }
  c10::DataPtr allocate(size_t size) override {
    std::lock_guard guard(memory_lock());
    char* block = static_cast<char*>(std::aligned_alloc(64, (size + 64) / 64 * 64));
    blocks()[block] = size + 1;
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  static void release(void* block) {
    std::lock_guard guard(memory_lock());
    blocks().erase(static_cast<char*>(block));
    std::free(block);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t count) const override { std::memcpy(target, source, count); }
};

inline DeviceMemory& device_memory() {
  static DeviceMemory* one = new DeviceMemory; // outlives every tensor
  return *one;
}

inline PinnedMemory& pinned_memory() {
  static PinnedMemory* one = new PinnedMemory;
  return *one;
}

} // namespace sim

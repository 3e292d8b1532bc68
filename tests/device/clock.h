// The virtual clock of the simulated device: what the host pays for a launch, how long a kernel takes, and who waits.
//
// Nothing here is measured. The host has a time of its own that only launches, polls and waits move; each stream has the
// time at which its last kernel ends. A kernel begins when it has been launched and when the kernel before it has ended,
// and takes the longer of what its bytes and its floating point operations take on the named GPU (a roofline).
//
// Copies to pinned memory with `non_blocking=True` are held back here: their target holds garbage until the host has
// waited for them, by an event, a stream, the device, or a blocking read.
#pragma once

#include <ATen/ATen.h>
#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace sim {

constexpr int kDevices = 2;

inline std::recursive_mutex& lock() { // kernels run on the threads of the autograd engine, too
  static auto* one = new std::recursive_mutex;
  return *one;
}

// ---- the model of a machine, all in microseconds; the defaults are those of an A100 with 80 GB

struct Machine {
  double launch = 5.0;               // host time of one launch, with PyTorch's own work for one operation
  double shortest_kernel = 2.0;      // no kernel is shorter
  double bytes_per_us = 1.5e6;       // memory bandwidth
  double flops_per_us = 150e6;       // matrix operations
  double link_bytes_per_us = 20e3;   // copies between host and device
  double round_trip = 10.0;          // between the end of a kernel and the host that waited for it
};

// ---- what is counted

struct Counters {
  std::map<std::string, int64_t> launches; // kernels by operation
  std::map<std::string, int64_t> waits;    // by operation: the host stops until everything queued so far has ended
  int64_t event_waits = 0;                 // the host stops for an event that had not happened yet
  int64_t copies_async = 0, copies_to_host = 0, copies_to_device = 0;
  int64_t bytes_moved = 0, allocations = 0;
};

// ---- streams, events and copies under way

struct Arrival { // a copy whose target the host may not read yet
  int64_t number;
  at::Tensor target, values;
};

struct Queue { // one stream of one device
  double ready = 0.0;
  std::vector<Arrival> under_way;
};

struct Event {
  int device;
  int64_t stream, number; // copies up to this number have arrived when the event has happened
  double time;
};

struct State {
  Machine machine;
  Counters counters;
  double begin = 0.0;   // of what is counted: the clock itself never goes back, so that an event of before has happened
  double host = 0.0;
  double idle = 0.0;    // device time between the end of a kernel and the beginning of the next one
  int64_t number = 0;   // of the last thing queued
  bool refuses_waits = false; // as `torch.cuda.set_sync_debug_mode("error")`
  bool dry = false;     // shapes only: no kernel computes anything, and the host reads zeros
  std::map<std::pair<int, int64_t>, Queue> queues;
};

inline State& state() {
  static State* one = new State; // never destroyed: tensors may outlive every other static
  return *one;
}

inline Queue& queue(int device, int64_t stream) { return state().queues[{device, stream}]; }

inline void launch(const std::string& name, int device, int64_t stream, double bytes, double flops, int64_t kernels) {
  auto& s = state();
  auto& q = queue(device, stream);
  s.counters.launches[name] += kernels;
  const double each = std::max(
      {s.machine.shortest_kernel, bytes / kernels / s.machine.bytes_per_us, flops / kernels / s.machine.flops_per_us});
  for (int64_t i = 0; i < kernels; ++i) {
    s.host += s.machine.launch;
    if (s.host > q.ready) s.idle += s.host - q.ready;
    q.ready = std::max(q.ready, s.host) + each;
  }
  ++s.number;
}

// From here on it is counted: everything that was queued has ended, and host and device are at the same time.
inline void begin_to_count() {
  auto& s = state();
  s.counters = {};
  for (auto& [key, q] : s.queues) s.host = std::max(s.host, q.ready);
  for (auto& [key, q] : s.queues) q.ready = s.host;
  s.begin = s.host;
  s.idle = 0.0;
}

inline void deliver(Queue& q, int64_t up_to) {
  for (auto& arrival : q.under_way)
    if (arrival.number <= up_to) arrival.target.copy_(arrival.values);
  q.under_way.erase(
      std::remove_if(q.under_way.begin(), q.under_way.end(), [&](const Arrival& a) { return a.number <= up_to; }),
      q.under_way.end());
}

// The host stops until everything that was queued on the stream has ended: what empties the queue of a real device.
inline void wait(const std::string& name, int device, int64_t stream) {
  auto& s = state();
  TORCH_CHECK(!s.refuses_waits, "called a synchronizing operation of sim: ", name);
  auto& q = queue(device, stream);
  ++s.counters.waits[name];
  s.host = std::max(s.host, q.ready) + s.machine.round_trip;
  deliver(q, s.number);
}

inline void wait_for_device(const std::string& name, int device) {
  auto& s = state();
  TORCH_CHECK(!s.refuses_waits, "called a synchronizing operation of sim: ", name);
  ++s.counters.waits[name];
  for (auto& [key, q] : s.queues)
    if (key.first == device) {
      s.host = std::max(s.host, q.ready);
      deliver(q, s.number);
    }
  s.host += s.machine.round_trip;
}

// The host stops for one event; what was queued after it stays queued, so the device has work meanwhile.
inline void wait_for(const Event& event) {
  auto& s = state();
  if (event.time > s.host) {
    ++s.counters.event_waits;
    s.host = event.time + s.machine.round_trip;
  }
  deliver(queue(event.device, event.stream), event.number);
}

inline bool has_happened(const Event& event) {
  auto& s = state();
  s.host += 0.5; // a poll
  if (event.time > s.host) return false;
  deliver(queue(event.device, event.stream), event.number);
  return true;
}

} // namespace sim

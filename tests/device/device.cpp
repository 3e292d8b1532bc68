// A simulated accelerator for PyTorch: device "sim", with memory that the host cannot touch and a virtual clock.
//
// Every operation runs on the CPU's own kernels: `run_on_host` opens the memory of the operands, shows them to the CPU
// kernel as CPU tensors that share it, and moves new results to the device. So results are those of the CPU, bit for
// bit, while everything around the kernel (memory, streams, random numbers, launches, waits) is that of an accelerator.
// In this order: streams and events (Guard), random numbers, the bridge to CPU kernels, copies, what PyTorch asks of a
// device (Hooks), and the operations by which Python reads the counters (`torch.ops.sim`).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "memory.h"

namespace sim {

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;
constexpr auto kSim = c10::DeviceType::PrivateUse1;

// ---- streams and events

int64_t& current_stream(int device) {
  static thread_local std::array<int64_t, kDevices> ids{};
  return ids[device];
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream_of(int device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, static_cast<c10::DeviceIndex>(device)), id);
  }
  static int index(c10::Device device) { return device.has_index() ? device.index() : current_device(); }
  c10::DeviceType type() const override { return kSim; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto old = getDevice();
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override { return {kSim, static_cast<c10::DeviceIndex>(current_device())}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(index(device) < kDevices, "sim has ", kDevices, " devices, got index ", index(device));
    current_device() = index(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device() = index(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device d) const override { return stream_of(index(d), current_stream(index(d))); }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream_of(index(d), 0); }
  c10::Stream getNewStream(c10::Device d, int) const override {
    static int64_t made = 0;
    return stream_of(index(d), ++made);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int device = stream.device_index();
    return stream_of(device, std::exchange(current_stream(device), stream.id()));
  }
  bool queryStream(const c10::Stream& s) const override {
    return queue(s.device_index(), s.id()).ready <= state().host;
  }
  void synchronizeStream(const c10::Stream& s) const override {
    std::lock_guard guard(lock());
    wait("synchronize", s.device_index(), s.id());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    std::lock_guard guard(lock());
    wait_for_device("synchronize", device);
  }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    std::lock_guard guard(lock());
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {
        s.device_index(), s.id(), state().number, std::max(queue(s.device_index(), s.id()).ready, state().host)};
  }
  void block(void* event, const c10::Stream& s) const override {
    std::lock_guard guard(lock());
    auto& q = queue(s.device_index(), s.id());
    if (event != nullptr) q.ready = std::max(q.ready, static_cast<Event*>(event)->time);
  }
  bool queryEvent(void* event) const override {
    std::lock_guard guard(lock());
    return event == nullptr || has_happened(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    std::lock_guard guard(lock());
    if (event != nullptr) wait_for(*static_cast<Event*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    return (static_cast<Event*>(second)->time - static_cast<Event*>(first)->time) / 1e3; // milliseconds
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- random numbers: a generator for each device. The CPU's own generator does not move when the device draws

struct SimGenerator final : at::CPUGeneratorImpl {
  explicit SimGenerator(int device, uint64_t seed = c10::default_rng_seed_val) : CPUGeneratorImpl(seed) {
    device_ = c10::Device(kSim, static_cast<c10::DeviceIndex>(device));
    key_set_ = c10::DispatchKeySet(DispatchKey::PrivateUse1);
  }
};

const at::Generator& default_generator(int device) {
  static auto* all = new std::array<at::Generator, kDevices>{
      at::make_generator<SimGenerator>(0), at::make_generator<SimGenerator>(1)};
  return (*all)[device < 0 ? current_device() : device];
}

class Drawing { // while it lives, the CPU's default generator goes on where this one has stopped
 public:
  explicit Drawing(at::Generator device) : device_(std::move(device)), host_(at::detail::getDefaultCPUGenerator()) {
    std::lock_guard guard(host_.mutex());
    before_ = host_.get_state();
    host_.set_state(device_.get_state());
  }
  ~Drawing() {
    std::lock_guard guard(host_.mutex());
    device_.set_state(host_.get_state());
    host_.set_state(before_);
  }

 private:
  at::Generator device_, host_;
  Tensor before_;
};

// ---- tensors of the device as CPU tensors, and back

Tensor host_alias(const Tensor& t) { // shares the memory, which must have been opened
  auto* base = static_cast<char*>(const_cast<void*>(t.storage().data()));
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), t.storage().nbytes(), c10::DataPtr(base, c10::Device(c10::kCPU)), nullptr, false);
  auto alias = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(DispatchKey::CPU), t.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) alias._set_conj(true);
  if (t.is_neg()) alias._set_neg(true);
  return alias;
}

Tensor meta_alias(const Tensor& t) { return at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kMeta)); }

Tensor new_on_device(const Tensor& like, int device) {
  const c10::OptionalDeviceGuard guard(c10::Device(kSim, static_cast<c10::DeviceIndex>(device)));
  return at::detail::empty_strided_generic(
      like.sizes(), like.strides(), &device_memory(), c10::DispatchKeySet(DispatchKey::PrivateUse1), like.scalar_type());
}

Tensor view_on_device(const Tensor& base, const Tensor& like) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(base.storage()), c10::DispatchKeySet(DispatchKey::PrivateUse1), like.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return view;
}

// The operands of one call. Tensors of the device are replaced by aliases, results are turned back.
class Call {
 public:
  Call(const c10::OperatorHandle& op, bool dry) : op_(op), name_(op.schema().operator_name().name.substr(6)), dry_(dry) {}

  IValue to_host(const IValue& value, bool written) {
    if (value.isTensor()) return written_or_read(value.toTensor(), written);
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(written_or_read(each, written));
      longest_list = std::max<int64_t>(longest_list, static_cast<int64_t>(list.size()));
      ++lists;
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const IValue& each : value.toListRef()) {
        if (each.isNone()) list.push_back(std::nullopt);
        else list.push_back(written_or_read(each.toTensor(), written));
      }
      return list;
    }
    if (value.isDevice() && value.toDevice().type() == kSim) {
      device = Guard::index(value.toDevice());
      return c10::Device(dry_ ? c10::kMeta : c10::kCPU);
    }
    if (value.isGenerator() && value.toGenerator().device().type() == kSim) {
      generator = value.toGenerator();
      return IValue();
    }
    return value;
  }

  IValue to_device(const IValue& value) {
    if (value.isTensor()) return result(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(result(each));
      return list;
    }
    return value;
  }

  // Results that were given as empty tensors take the shape that the kernel gave them.
  void finish() {
    for (auto& [given, made] : resized_) {
      given.resize_(made.sizes());
      put(made, given);
    }
  }

  void check_devices() const {
    TORCH_CHECK(
        cpu_operand_ < 0 || device < 0 || name_ == "index" || name_ == "_index_put_impl_" || name_ == "index_put_" ||
            name_.rfind("_ctc_loss", 0) == 0, // its lengths are numbers for the host
        "Expected all tensors to be on the same device, but found at least two devices, sim:", device,
        " and cpu! (when running ", name_, ")");
  }

  int device = -1;
  int64_t lists = 0, longest_list = 0;
  double bytes = 0.0, flops = 0.0, largest = 0.0;
  std::optional<at::Generator> generator;
  bool mask = false; // an operand of booleans: where indices are meant, its places must be found first

 private:
  Tensor written_or_read(const Tensor& t, bool written) {
    if (!t.defined()) return t;
    if (t.device().type() != kSim) {
      if (t.is_cpu() && t.dim() > 0) cpu_operand_ = 0;
      return dry_ && t.is_cpu() && t.dim() > 0 ? meta_alias(t) : t;
    }
    TORCH_CHECK(
        device < 0 || device == t.get_device() || t.dim() == 0 || lists > 0,
        "Expected all tensors to be on the same device, but found at least two devices, sim:", device, " and sim:",
        static_cast<int>(t.get_device()), "! (when running ", name_, ")");
    device = t.get_device();
    bytes += static_cast<double>(t.nbytes()) * (written ? 2 : 1); // read, and written
    largest = std::max(largest, static_cast<double>(t.numel()));
    mask = mask || t.scalar_type() == at::kBool || t.scalar_type() == at::kByte;
    if (dry_) {
      aliases_.emplace_back(t, meta_alias(t));
    } else if (written && t.numel() == 0) {
      resized_.emplace_back(t, at::empty({0}, t.options().device(c10::kCPU)));
      return resized_.back().second;
    } else {
      opened_.add(t.storage().data());
      aliases_.emplace_back(t, host_alias(t));
    }
    return aliases_.back().second;
  }

  Tensor result(const Tensor& made) {
    if (!made.defined() || device < 0) return made;
    for (auto& [given, alias] : aliases_)
      if (alias.is_same(made)) {
        if (made.sizes() != given.sizes() || made.strides() != given.strides()) // `transpose_` and its kind
          given.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
        return given;
      }
    for (auto& [given, alias] : resized_)
      if (alias.is_same(made)) return given;
    if (!made.is_cpu() && !made.is_meta()) return made;
    bytes += static_cast<double>(made.nbytes());
    if (!dry_ && made.numel() > 0)
      for (auto& [given, alias] : aliases_)
        if (alias.storage().data() == made.storage().data()) return view_on_device(given, made);
    Tensor moved = new_on_device(made, device);
    put(made, moved);
    return moved;
  }

  void put(const Tensor& made, const Tensor& target) {
    if (dry_ || made.numel() == 0) return;
    Opened opened;
    opened.add(target.storage().data());
    host_alias(target).copy_(made);
  }

  const c10::OperatorHandle& op_;
  std::string name_;
  bool dry_;
  int cpu_operand_ = -1;
  Opened opened_;
  std::vector<std::pair<Tensor, Tensor>> aliases_, resized_;
};

// ---- what an operation costs

// How many kernels PyTorch launches on CUDA for one call: one, except for lists of tensors, which are cut to fit into
// the arguments of a kernel (the more lists, the fewer tensors) and into 320 blocks of 65,536 elements each.
int64_t kernels_of(const Call& call) {
  if (call.lists == 0) return 1;
  static const int64_t fit[] = {110, 64, 48, 36, 30};
  const int64_t by_count = (call.longest_list + fit[std::min<int64_t>(call.lists, 5) - 1] - 1) / fit[std::min<int64_t>(call.lists, 5) - 1];
  const double elements = call.bytes / 4.0 / static_cast<double>(std::max<int64_t>(call.lists, 1));
  return std::max<int64_t>({1, by_count, static_cast<int64_t>(elements / (320.0 * 65536.0))});
}

double flops_of(const std::string& name, at::ArrayRef<IValue> arguments, const Tensor& result) {
  auto factor = [&](size_t i) { return arguments.size() > i && arguments[i].isTensor() ? arguments[i].toTensor() : Tensor(); };
  const bool adds = name == "aten::addmm" || name == "aten::baddbmm";
  if (adds || name == "aten::mm" || name == "aten::bmm") {
    const Tensor left = factor(adds ? 1 : 0);
    return 2.0 * static_cast<double>(result.numel()) * static_cast<double>(left.size(-1));
  }
  return 0.0;
}

bool needs_its_values_on_the_host(const c10::OperatorHandle& op, const Call& call) {
  const auto& name = op.schema().operator_name().name;
  if (name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_") return call.mask;
  if (op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output)) return true;
  return std::any_of(op.schema().returns().begin(), op.schema().returns().end(), [](const c10::Argument& each) {
    return each.type()->kind() == c10::TypeKind::BoolType || each.type()->kind() == c10::TypeKind::IntType;
  });
}

// ---- the bridge: any operation, on the CPU's kernel

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::lock_guard guard(lock());
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto& schema = op.schema();
  const auto& name = schema.operator_name().name;
  const bool dry = state().dry;
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size());
  const std::vector<IValue> given(first, stack->end());
  Call call(op, dry);
  for (size_t i = 0; i < given.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    *(first + static_cast<std::ptrdiff_t>(i)) = call.to_host(given[i], alias != nullptr && alias->isWrite());
  }
  if (call.device < 0) call.device = current_device();
  call.check_devices();
  {
    std::optional<Drawing> drawing;
    const bool draws = op.hasTag(at::Tag::nondeterministic_seeded) || call.generator.has_value();
    if (draws && !dry) drawing.emplace(call.generator.value_or(default_generator(call.device)));
    op.redispatchBoxed(c10::DispatchKeySet(dry ? DispatchKey::Meta : DispatchKey::CPU), stack);
  }
  const auto results = stack->end() - static_cast<std::ptrdiff_t>(schema.returns().size());
  const Tensor made = results != stack->end() && results->isTensor() ? results->toTensor() : Tensor();
  for (auto each = results; each != stack->end(); ++each) *each = call.to_device(*each);
  call.finish();
  if (made.defined()) call.flops = flops_of(name, given, made);
  const int64_t stream = current_stream(call.device);
  launch(name.substr(6), call.device, stream, call.bytes, call.flops, kernels_of(call));
  if (needs_its_values_on_the_host(op, call)) wait(name.substr(6), call.device, stream);
}

// ---- copies, and single values to the host

void fill_with_garbage(const Tensor& t) { std::memset(t.data_ptr(), 0xff, t.nbytes()); } // NaN, -1 or "true"

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  std::lock_guard guard(lock());
  const at::AutoDispatchBelowADInplaceOrView below;
  auto& s = state();
  const bool to_host = target.is_cpu(), from_host = source.is_cpu();
  const int device = to_host ? source.get_device() : target.get_device();
  const int64_t stream = current_stream(device);
  const double bytes = static_cast<double>(std::max(source.nbytes(), target.nbytes()));
  s.counters.bytes_moved += static_cast<int64_t>(bytes);
  s.counters.copies_to_host += to_host;
  s.counters.copies_to_device += from_host;
  const bool over_link = to_host || from_host;
  launch(over_link ? "copy" : "copy_", device, stream,
         over_link ? bytes * s.machine.bytes_per_us / s.machine.link_bytes_per_us : 2 * bytes, 0.0, 1);
  const Tensor& host = to_host ? target : source;
  const bool held_back = to_host && non_blocking && PinnedMemory::holds(target.storage().data()) && target.is_contiguous();
  const bool waits = over_link && !(non_blocking && PinnedMemory::holds(host.storage().data()));
  if (waits) wait(to_host ? "copy to host" : "copy to device", device, stream);
  if (s.dry) {
    if (to_host) target.zero_();
    return target;
  }
  Opened opened;
  opened.add(source.storage().data());
  opened.add(target.storage().data());
  const Tensor from = from_host ? source : host_alias(source);
  if (held_back) {
    ++s.counters.copies_async;
    queue(device, stream).under_way.push_back({s.number, target, at::empty_like(target).copy_(from)});
    fill_with_garbage(target);
  } else {
    (to_host ? target : host_alias(target)).copy_(from);
  }
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar(const Tensor& t) {
  std::lock_guard guard(lock());
  wait("item", t.get_device(), current_stream(t.get_device()));
  if (state().dry) return 0.0;
  Opened opened;
  opened.add(t.storage().data());
  return host_alias(t).item();
}

// ---- tensors without values, views, and storage

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided, "sim holds dense tensors only");
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &device_memory(), c10::DispatchKeySet(DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &device_memory(),
                                           c10::DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

void grow(const c10::Storage& storage, size_t bytes) {
  if (bytes <= storage.nbytes()) return;
  const c10::OptionalDeviceGuard guard(storage.device());
  c10::DataPtr fresh = device_memory().allocate(bytes);
  if (storage.nbytes() > 0 && !state().dry) device_memory().copy_data(fresh.get(), storage.data(), storage.nbytes());
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

const Tensor& resize(const Tensor& t, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format.has_value()) impl->empty_tensor_restride(*format);
  grow(t.storage(), (t.storage_offset() + t.numel()) * t.itemsize());
  return t;
}

Tensor unfold(const Tensor& t, int64_t dimension, int64_t size, int64_t step) {
  const auto like = meta_alias(t).unfold(dimension, size, step);
  return t.as_strided(like.sizes(), like.strides(), t.storage_offset());
}

bool is_set_to(const Tensor& a, const Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() && a.sizes() == b.sizes() &&
      a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
}

Tensor& set_storage(Tensor& t, at::Storage source) {
  const auto length = static_cast<int64_t>(source.nbytes() / t.itemsize());
  return at::native::set_storage_cpu_(t, std::move(source), 0, {length}, {1});
}

Tensor& set_tensor(Tensor& t, const Tensor& source) {
  return at::native::set_storage_cpu_(t, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

// ---- convolutions: PyTorch asks a device of its own for these two

Tensor on_host(const Tensor& t, Opened& opened) {
  if (!t.defined()) return t;
  opened.add(t.storage().data());
  return host_alias(t);
}

Tensor from_host(const Tensor& made, const Tensor& like) {
  if (!made.defined()) return made;
  Tensor moved = new_on_device(made, like.get_device());
  Opened opened;
  opened.add(moved.storage().data());
  host_alias(moved).copy_(made);
  return moved;
}

void launch_convolution(const char* name, const Tensor& input, const Tensor& weight, const Tensor& output, double times) {
  const double flops = 2.0 * times * static_cast<double>(output.numel()) * static_cast<double>(weight.numel() / weight.size(0));
  const double bytes = static_cast<double>(input.nbytes() + weight.nbytes() + output.nbytes()) * times;
  launch(name, input.get_device(), current_stream(input.get_device()), bytes, flops, static_cast<int64_t>(times));
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::IntArrayRef stride,
                   c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
                   int64_t groups) {
  std::lock_guard guard(lock());
  const at::AutoDispatchBelowADInplaceOrView below;
  Opened opened;
  std::optional<Tensor> b;
  if (bias.has_value() && bias->defined()) b = on_host(*bias, opened);
  const Tensor made = at::convolution(on_host(input, opened), on_host(weight, opened), b, stride, padding, dilation,
                                      transposed, output_padding, groups);
  const Tensor output = from_host(made, input);
  launch_convolution("convolution", input, weight, output, 1.0);
  return output;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, c10::IntArrayRef stride, c10::IntArrayRef padding,
    c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  std::lock_guard guard(lock());
  const at::AutoDispatchBelowADInplaceOrView below;
  Opened opened;
  const int64_t channels = gradient.size(1);
  auto [a, b, c] = at::convolution_backward(
      on_host(gradient, opened), on_host(input, opened), on_host(weight, opened), c10::IntArrayRef{channels}, stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  launch_convolution("convolution_backward", input, weight, gradient, 2.0);
  return {from_host(a, input), from_host(b, input), from_host(c, input)};
}

// ---- counts of integers: CUDA has a kernel for them, the CPU has not

Tensor histogram(const Tensor& t, int64_t bins, const at::Scalar& low, const at::Scalar& high) {
  std::lock_guard guard(lock());
  const at::AutoDispatchBelowADInplaceOrView below;
  Opened opened;
  const Tensor values = on_host(t, opened);
  const Tensor made = at::histc(at::isFloatingType(t.scalar_type()) ? values : values.to(at::kDouble), bins, low, high);
  launch("histc", t.get_device(), current_stream(t.get_device()), static_cast<double>(t.nbytes()), 0.0, 1);
  return from_host(made.to(t.scalar_type()), t);
}

// ---- what PyTorch asks of a device

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { Guard().setDevice({kSim, device}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice({kSim, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<SimGenerator>(device < 0 ? current_device() : device);
  }
  c10::Device getDeviceFromPtr(void* p) const override { return {kSim, static_cast<c10::DeviceIndex>(device_of(p))}; }
  bool isPinnedPtr(const void* p) const override { return PinnedMemory::holds(p); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override { grow(storage, bytes); }
};

// ---- registration

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(unfold));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("is_set_to", TORCH_FN(is_set_to));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("histc", TORCH_FN(histogram));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  // Three kinds of operations would be taken apart before they come here: those on lists of tensors, which are few kernels
  // on a real device, those that PyTorch writes in terms of their own `out=` form, and those that it writes for any device
  // although the CPU has a kernel of its own (`native_group_norm`).
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    const bool list = name.name.rfind("aten::_foreach_", 0) == 0;
    if (!op || name.name.rfind("aten::", 0) != 0 || op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) continue;
    const bool own = op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
        op->hasKernelForDispatchKey(DispatchKey::CPU);
    if (list || own || op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional))
      m.impl((name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name)).c_str(),
             torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

// A lazily conjugated or negated tensor is copied as it is: PyTorch would resolve it by a copy, and so on for ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) { // the same lists as on CUDA
#define IN_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define IN_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define IN_FLOAT32_UNLESS_TOLD(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define IN_THE_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(IN_LOWER_PRECISION)
  AT_FORALL_FP32(IN_FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(IN_FLOAT32_UNLESS_TOLD)
  AT_FORALL_PROMOTE(IN_THE_WIDEST)
}

// ---- what Python asks: `torch.ops.sim`

void begin() {
  c10::SetAllocator(kSim, &device_memory());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

std::vector<double> numbers() { // in the order of `Counts` in device.py
  std::lock_guard guard(lock());
  const auto& s = state();
  const auto& c = s.counters;
  double device_end = s.begin;
  for (const auto& [key, q] : s.queues) device_end = std::max(device_end, q.ready);
  return {static_cast<double>(c.event_waits), static_cast<double>(c.copies_async), static_cast<double>(c.copies_to_host),
          static_cast<double>(c.copies_to_device), static_cast<double>(c.bytes_moved),
          static_cast<double>(c.allocations), s.host - s.begin, device_end - s.begin, s.idle};
}

c10::Dict<std::string, int64_t> by_operation(bool waits) {
  std::lock_guard guard(lock());
  c10::Dict<std::string, int64_t> all;
  for (const auto& [name, count] : waits ? state().counters.waits : state().counters.launches) all.insert(name, count);
  return all;
}

void reset() { // copies under way stay under way
  std::lock_guard guard(lock());
  begin_to_count();
}

void spend(double host_us) { // work of the host that no operation stands for
  std::lock_guard guard(lock());
  state().host += host_us;
}

void set_machine(double launch_us, double shortest_us, double bytes, double flops, double link, double round_trip) {
  state().machine = {launch_us, shortest_us, bytes, flops, link, round_trip};
}

void set_capacity(int64_t device, int64_t bytes) { arena(static_cast<int>(device)).capacity = static_cast<size_t>(bytes); }
void refuse_waits(bool refuse) { state().refuses_waits = refuse; }
void set_dry(bool dry) { state().dry = dry; }
Tensor rng_state(int64_t device) { return default_generator(static_cast<int>(device)).get_state(); }
void set_rng_state(int64_t device, const Tensor& state) {
  at::Generator generator = default_generator(static_cast<int>(device));
  generator.set_state(state);
}
void seed(int64_t device, int64_t value) {
  at::Generator generator = default_generator(static_cast<int>(device));
  generator.set_current_seed(static_cast<uint64_t>(value));
}

TORCH_LIBRARY(sim, m) {
  m.def("begin", &begin);
  m.def("numbers", &numbers);
  m.def("by_operation", &by_operation);
  m.def("reset", &reset);
  m.def("spend", &spend);
  m.def("set_machine", &set_machine);
  m.def("set_capacity", &set_capacity);
  m.def("set_dry", &set_dry);
  m.def("refuse_waits", &refuse_waits);
  m.def("rng_state", &rng_state);
  m.def("set_rng_state", &set_rng_state);
  m.def("seed", &seed);
}

} // namespace sim

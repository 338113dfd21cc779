#include "compute/gpu/cuda/stream.h"

#include "compute/gpu/cuda/error.h"

namespace espalier::gpu::cuda {

Result<Stream> Stream::create() {
  cudaStream_t handle = nullptr;
  ESPALIER_CHECK(
      check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "creating a stream"));
  Stream stream;
  stream.stream_.reset(handle);
  return stream;
}

Status Stream::wait() {
  return check(cudaStreamSynchronize(stream_.get()), "waiting for the GPU's work");
}

Result<Event> Event::create() {
  cudaEvent_t handle = nullptr;
  ESPALIER_CHECK(check(cudaEventCreate(&handle), "creating an event"));
  Event event;
  event.event_.reset(handle);
  return event;
}

Status Event::record(Stream& stream) {
  return check(cudaEventRecord(event_.get(), stream.get()), "recording an event");
}

Status Event::wait() {
  return check(cudaEventSynchronize(event_.get()), "waiting for the GPU's work");
}

Result<double> Event::seconds_between(const Event& begin, const Event& end) {
  float milliseconds = 0;
  ESPALIER_CHECK(check(cudaEventElapsedTime(&milliseconds, begin.event_.get(), end.event_.get()),
                       "reading the time between events"));
  return 1e-3 * milliseconds;
}

Result<Graph> Graph::capture(Stream& stream, const std::function<Status()>& add_work) {
  ESPALIER_CHECK(check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
                       "recording a graph"));
  Status added = add_work();
  cudaGraph_t handle = nullptr;
  // Also after an error, or the stream would stay in this state.
  const Status ended = check(cudaStreamEndCapture(stream.get(), &handle), "recording a graph");
  const Owned<cudaGraph_t, cudaGraphDestroy> recorded(handle);
  ESPALIER_CHECK(std::move(added));
  ESPALIER_CHECK(ended);
  cudaGraphExec_t executable = nullptr;
  ESPALIER_CHECK(check(cudaGraphInstantiate(&executable, recorded.get(), 0), "preparing a graph"));
  Graph graph;
  graph.graph_.reset(executable);
  return graph;
}

Status Graph::replay(Stream& stream) const {
  return check(cudaGraphLaunch(graph_.get(), stream.get()), "starting a graph");
}

}  // namespace espalier::gpu::cuda

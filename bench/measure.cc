#include "bench/measure.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <sstream>

#include "base/message.h"
#include "support/peak_memory.h"

namespace kindling::bench {
namespace {

using Clock = std::chrono::steady_clock;
using test::OperatorCase;

// A repetition of less is mostly clock and probe: short calls are repeated within it.
constexpr double kShortestRepetition = 2e-3;

#ifdef __clang__
constexpr char kCompiler[] = __VERSION__;  // begins with "Clang"
#else
constexpr char kCompiler[] = "GCC " __VERSION__;
#endif

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Pages of its own that no one has touched yet.
class FreshWorkspace {
 public:
  explicit FreshWorkspace(size_t bytes) : bytes_(bytes) {
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = pages == MAP_FAILED ? nullptr : pages;
  }
  FreshWorkspace(const FreshWorkspace&) = delete;
  FreshWorkspace& operator=(const FreshWorkspace&) = delete;
  ~FreshWorkspace() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_;
  size_t bytes_;
};

// One side of a line, ready to be run again and again.
class Runner {
 public:
  // Makes the problem and runs it once, in a fresh workspace.
  static Result<std::unique_ptr<Runner>> Create(const OperatorCase& spec, Isa best) {
    auto runner = std::make_unique<Runner>(spec, spec.isa.value_or(best));
    Status status = SetIsa(runner->side.isa);
    if (!status.ok()) return status;
    runner->side.peak = BestPeak(runner->side.isa, spec.spec.dtype);
    runner->problem = std::make_unique<BenchProblem>(spec);
    const Result<size_t> bytes = runner->problem->WorkspaceBytes();
    if (!bytes.ok()) return bytes.status();
    runner->side.workspace_bytes = bytes.value();
    runner->side.num_pairs = runner->problem->num_pairs();
    runner->workspace = std::make_unique<FreshWorkspace>(bytes.value());
    const test::PeakMemory memory;
    status = runner->Run();
    if (!status.ok()) return status;
    runner->side.peak_bytes = memory.Growth().value_or(0);
    return runner;
  }

  Runner(const OperatorCase& operator_case, Isa isa) : spec(operator_case) { side.isa = isa; }

  Status Run() {
    RunOptions options;
    options.num_threads = spec.num_threads;
    options.workspace = workspace->data();
    options.workspace_bytes = workspace->bytes();
    return problem->Run(options);
  }

  Status CheckAnswer() {
    const Result<Errors> errors = CheckAgainstReference(*problem);
    if (!errors.ok()) return errors.status();
    side.errors = errors.value();
    if (side.errors.Acceptable(spec.spec.dtype)) return Status();
    return InvalidArgument("answer: expected that of the reference, got another");
  }

  // Warms up, and finds how many calls make a repetition.
  Status WarmUp() {
    KINDLING_RETURN_IF_ERROR(SetIsa(side.isa));
    const Clock::time_point begin = Clock::now();
    KINDLING_RETURN_IF_ERROR(Run());
    calls = std::max<int64_t>(1, static_cast<int64_t>(kShortestRepetition / SecondsSince(begin)));
    return Status();
  }

  // One repetition between two probes. Returns the seconds of one call, which has run before.
  double Repeat() {
    (void)SetIsa(side.isa);
    const Rates before = MeasureRates();
    const Clock::time_point begin = Clock::now();
    for (int64_t call = 0; call < calls; ++call) (void)Run();
    const double seconds = SecondsSince(begin) / static_cast<double>(calls);
    const Rates after = MeasureRates();
    const Rates around = {(before.flops + after.flops) / 2, (before.exps + after.exps) / 2};
    micros.push_back(seconds * 1e6);
    flops.push_back(around.flops);
    exps.push_back(around.exps);
    // The roofline: exps and products need the same units, one after the other.
    double least = problem->flops() / around.flops;
    if (problem->exps() > 0) least += problem->exps() / around.exps;
    shares.push_back(least / seconds);
    return seconds;
  }

  Side Summary() {
    side.micros = MedianOf(micros);
    side.share = MedianOf(shares);
    side.peak_flops = MedianOf(flops);
    side.peak_exps = MedianOf(exps);
    side.gflops = problem->flops() / side.micros.median * 1e-3;
    side.gigabytes = problem->bytes() / side.micros.median * 1e-3;
    return side;
  }

  const OperatorCase& spec;
  Side side;
  std::unique_ptr<BenchProblem> problem;
  std::unique_ptr<FreshWorkspace> workspace;
  int64_t calls = 1;

 private:
  struct Rates {
    double flops = 0.0;
    double exps = 0.0;
  };
  Rates MeasureRates() const {
    Rates rates{MeasurePeak(side.peak, spec.num_threads)};
    if (problem->exps() > 0) rates.exps = MeasureExps(side.isa, spec.num_threads);
    return rates;
  }

  std::vector<double> micros, shares, flops, exps;
};

// Puts the instruction set back that was there before.
class RestoredIsa {
 public:
  RestoredIsa() : before_(GetIsa()) {}
  RestoredIsa(const RestoredIsa&) = delete;
  RestoredIsa& operator=(const RestoredIsa&) = delete;
  ~RestoredIsa() { (void)SetIsa(before_); }
  Isa before() const { return before_; }

 private:
  const Isa before_;
};

void WriteSide(std::ostream& out, const OperatorCase& spec, const Side& side) {
  const auto spread = [&out](const char* name, const Spread& value) {
    out << ", \"" << name << "\": " << value.median << ", \"" << name
        << "_spread\": " << value.spread;
  };
  out << "{\"operator\": \"" << OperatorName(spec.op) << "\", \"isa\": \"" << IsaName(side.isa)
      << "\", \"threads\": " << spec.num_threads << ", \"heads\": " << spec.spec.num_heads
      << ", \"dim\": " << spec.spec.head_dim << ", \"pairs\": " << side.num_pairs;
  spread("us", side.micros);
  spread("share", side.share);
  out << ", \"peak\": \"" << PeakName(side.peak) << "\"";
  spread("peak_flops", side.peak_flops);
  out << ", \"peak_exps\": " << side.peak_exps.median;
  out << ", \"gflops\": " << side.gflops << ", \"gbytes\": " << side.gigabytes
      << ", \"workspace_bytes\": " << side.workspace_bytes
      << ", \"peak_bytes\": " << side.peak_bytes << ", \"errors\": {\"lse\": " << side.errors.lse
      << ", \"softmax_out\": " << side.errors.softmax_out
      << ", \"loss_rows\": " << side.errors.loss_rows << ", \"dq\": " << side.errors.dq
      << ", \"dk\": " << side.errors.dk << ", \"dw\": " << side.errors.dw
      << ", \"p\": " << side.errors.p << "}}";
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

Spread MedianOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  // Of sorted values, linear between neighbours.
  const auto quantile = [&values](double q) {
    const double at = q * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
  };
  const double median = quantile(0.5);
  return {median, (quantile(0.75) - quantile(0.25)) / median};
}

Result<Measurement> Measure(const test::CaseLine& line, const MeasureOptions& options) {
  const RestoredIsa isa;
  std::vector<std::unique_ptr<Runner>> runners;
  for (const OperatorCase& side : line.sides) {
    Result<std::unique_ptr<Runner>> runner = Runner::Create(side, isa.before());
    if (!runner.ok()) return runner.status();
    runners.push_back(std::move(runner).value());
  }
  Measurement out;
  out.checked = options.check_answer;
  for (const auto& runner : runners) {
    if (out.checked) KINDLING_RETURN_IF_ERROR(runner->CheckAnswer());
    KINDLING_RETURN_IF_ERROR(runner->WarmUp());
  }
  std::vector<double> ratios;
  double seconds = 0.0;
  const auto enough = [&] {
    if (out.num_repetitions < options.min_repetitions) return false;
    return seconds >= options.seconds || out.num_repetitions >= options.max_repetitions;
  };
  for (; !enough(); ++out.num_repetitions) {
    std::vector<double> times;
    for (const auto& runner : runners) {
      times.push_back(runner->Repeat());
      seconds +=
          times.back() * static_cast<double>(runner->calls) / static_cast<double>(runners.size());
    }
    if (times.size() == 2) ratios.push_back(times[0] / times[1]);
  }
  out.ratio = MedianOf(ratios);
  for (const auto& runner : runners) out.sides.push_back(runner->Summary());
  return out;
}

std::string ToJson(const test::CaseLine& line, const Measurement& measured,
                   const Provenance& provenance) {
  std::ostringstream out;
  out << "{\"line\": " << Quoted(line.text) << ", \"goal\": " << Quoted(line.sides[0].goal)
      << ", \"machine\": " << Quoted(provenance.machine)
      << ", \"commit\": " << Quoted(provenance.commit) << ", \"date\": " << Quoted(provenance.date)
      << ", \"compiler\": " << Quoted(kCompiler)
      << ", \"repetitions\": " << measured.num_repetitions
      << ", \"errors_checked\": " << (measured.checked ? "true" : "false")
      << ", \"ratio\": " << measured.ratio.median << ", \"ratio_spread\": " << measured.ratio.spread
      << ", \"sides\": [";
  for (size_t i = 0; i < measured.sides.size(); ++i) {
    if (i > 0) out << ", ";
    WriteSide(out, line.sides[i], measured.sides[i]);
  }
  out << "]}";
  return out.str();
}

}  // namespace kindling::bench

// The forward pass of the Llama family on a CPU: one call a step, float32, weights in the width of their file.
//
// Built by `cpu_build.py` with the machine's own compiler and flags; vectors are the compiler's generic ones, so
// one text serves AVX-512, AVX2 and NEON. What is exact: weights are the numbers of their file (a code times its
// scale, plus its minimum), products and sums are float32. Where a matrix of codes says `integers`, its inputs are
// integers of 16 bits instead, each group of 32 with a scale of its own: the sum of a group is exact, and the same
// to the last bit whatever other rows there are.
//
// Weights [N, K] lie as tiles of 16 outputs by groups of 32 inputs (see packed_weights.py):
//   F32   float[32][16]
//   BF16  uint16[32][16]
//   Q8    int32[8][16], 4 codes of 8 bits a word, lowest first; float scale[16], float minimum[16]
//   Q4    int32[4][16], 8 codes of 4 bits a word, lowest first; float scale[16], float minimum[16]
// A layer's KV lies as blocks of 16 slots: [block][kv head][keys [D][16], values [16][D]], so that the scores of 16
// keys are one vector and need no sum across it.

#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

// Floats of a register; rows and outputs of a register tile; rows up to which codes are decoded in registers alone;
// registers of attention's sums, and queries that are scored at a time; pairs of inputs between two jumps.
#if defined(__AVX512F__)
constexpr int W = 16, ROWS = 12, PANEL = 32, FEW = 8, SUMS = 24, SCORED = 8, PAIRS = 2;
#elif defined(__AVX__)
constexpr int W = 8, ROWS = 6, PANEL = 16, FEW = 4, SUMS = 12, SCORED = 6, PAIRS = 1;
#else
constexpr int W = 4, ROWS = 6, PANEL = 16, FEW = 4, SUMS = 12, SCORED = 3, PAIRS = 1;
#endif
constexpr int LANES = 16;       // outputs of a tile, and slots of a block of KV
constexpr int SUB = LANES / W;  // registers of a tile
constexpr int VECS = PANEL / W;
constexpr int SEVERAL = 2 * FEW; // rows up to which codes are decoded for each `FEW` of them
constexpr int AHEAD = 4096;     // bytes of weights
constexpr int GROUP = 32;       // inputs that share a scale
constexpr int DEPTH = 1024;     // inputs of a decoded panel: it stays in the second cache
constexpr int BLOCK_ROWS = 192; // rows that a decoded panel serves
constexpr float LEAST = 1e-30f; // the largest of a group of inputs, below which they are 0
constexpr int CHUNK = 256;      // keys between two rescalings of the softmax
constexpr int QUERIES = 24;     // queries that share a pass over keys; `cpu_model.fits` knows it
constexpr int SPAN = 512;       // keys of a pass for a row of few tokens: other cores take its other keys

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef int16_t vs __attribute__((vector_size(4 * W)));
typedef float vf4 __attribute__((vector_size(16)));
typedef int32_t vi4 __attribute__((vector_size(16)));

template <class V, class T>
inline V load(const T* at) {
  V v;
  memcpy(&v, at, sizeof v);
  return v;
}

inline void store(float* at, vf v) { memcpy(at, &v, sizeof v); }

inline vf all(float x) { return x - vf{}; }

// ---- threads ----------------------------------------------------------------------------------------------

// Beside others that never rest, this thread asks for its core often and for short, so that it has it as soon as it
// wakes: a step waits for each of its threads 150 times. Linux 6.12 and later; others take no notice.
void ask_for_short_slices() {
#if defined(SYS_sched_setattr) && defined(SYS_sched_getattr)
  static thread_local bool asked = false;
  if (asked) return;
  asked = true;
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } mine = {};
  if (syscall(SYS_sched_getattr, 0, &mine, sizeof mine, 0) || mine.policy != 0) return;  // 0: SCHED_OTHER
  mine.size = sizeof mine;
  mine.runtime = 100'000;  // ns, the shortest
  syscall(SYS_sched_setattr, 0, &mine, 0);
#endif
}

// Tasks are claimed one by one, so a thread that the system took off its core holds up nothing but the task it has.
class Threads {
 public:
  explicit Threads(int count) : pid(getpid()), count(count) {
    for (int i = 1; i < count; i++) std::thread([this] { work(); }).detach();
    several = count > 1;
  }

  const pid_t pid;
  const int count;

  template <class F>
  void run(int count, F&& task) {
    if (!several || count <= 1) {
      for (int i = 0; i < count; i++) task(i);
      return;
    }
    call = [](void* f, int i) { (*static_cast<std::remove_reference_t<F>*>(f))(i); };
    context = &task;
    done.store(0, std::memory_order_relaxed);
    const uint64_t mine = ((ticket.load(std::memory_order_relaxed) >> 48) + 1) << 48 | uint64_t(count) << 24;
    ticket.store(mine, std::memory_order_seq_cst);
    ticket.notify_all();
    while (one()) {
    }
    for (int spin = 0, now; (now = done.load(std::memory_order_acquire)) < count;)
      if (++spin > SPINS) done.wait(now);
  }

 private:
  static constexpr int SPINS = 4000;
  // Number of the job, how many tasks it has, how many are claimed: 16, 24 and 24 bits of one word, so that a thread
  // that comes late cannot claim a task of a job that it does not know. Attention has most: 2^22 of them for 256 rows
  // of 131,072 keys with 64 key-value heads.
  std::atomic<uint64_t> ticket{0};
  std::atomic<int> done{0};
  void (*call)(void*, int) = nullptr;
  void* context = nullptr;
  bool several = false;

  bool one() {
    uint64_t now = ticket.load(std::memory_order_acquire);
    for (;;) {
      const int index = int(now & 0xffffff), count = int(now >> 24 & 0xffffff);
      if (index >= count) return false;
      if (!ticket.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) continue;
      call(context, index);  // the job cannot end before this task does
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == count) done.notify_one();
      return true;
    }
  }

  void work() {
    ask_for_short_slices();
    for (;;) {
      const uint64_t seen = ticket.load(std::memory_order_acquire);
      if (one()) continue;
      int spin = 0;
      while (ticket.load(std::memory_order_acquire) == seen)
        if (++spin > SPINS) ticket.wait(seen);
    }
  }
};

// ---- products ---------------------------------------------------------------------------------------------

enum Kind : int32_t { F32, BF16, Q8, Q4 };

struct Matrix {
  int32_t kind, n, k, integers;  // `integers`: of Q8 and Q4, inputs are made integers
  const char* data;
  const float* bias;

  long group_bytes() const { return kind == F32 ? 2048 : kind == BF16 ? 1024 : kind == Q8 ? 640 : 384; }
  const char* tile(int index) const { return data + long(index) * (k / GROUP) * group_bytes(); }
};

constexpr int per_word(int kind) { return kind == Q4 ? 8 : 4; }

// Code `e` of every word.
template <int KIND>
inline vf code(vi word, int e) {
#if defined(__AVX512F__)  // a look-up takes the low four bits by itself: one instruction in place of two
  if constexpr (KIND == Q4)
    return _mm512_permutexvar_ps(__m512i(vu(word) >> (4 * e)),
                                 vf{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
#endif
  if constexpr (KIND == Q4) return __builtin_convertvector(vi((vu(word) >> (4 * e)) & 15u), vf);
  return __builtin_convertvector((word << (24 - 8 * e)) >> 24, vf);
}

// Codes `e` and `e` + half a word of every word, as integers of 16 bits.
template <int KIND>
inline vi pair(vi word, int e) {
  if constexpr (KIND == Q4) return vi((vu(word) >> (4 * e)) & 0x000f000fu);
  return e ? vi(vs(word) >> 8) : vi(vs(vs(word) << 8) >> 8);
}

// sum + a * b of both halves of every lane. Where these are two instructions, the compiler must not make trees of the
// sums, for which there are not enough registers.
inline vi dot(vi sum, vi a, vi b) {
#if defined(__AVX512VNNI__)
  return vi(_mm512_dpwssd_epi32(__m512i(sum), __m512i(a), __m512i(b)));
#elif !defined(__AVX512F__) && defined(__AVXVNNI__)
  return vi(_mm256_dpwssd_avx_epi32(__m256i(sum), __m256i(a), __m256i(b)));
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__)) || (defined(__SSE2__) && !defined(__AVX__))
#if defined(__AVX512BW__)
  sum += vi(_mm512_madd_epi16(__m512i(a), __m512i(b)));
#elif defined(__AVX2__)
  sum += vi(_mm256_madd_epi16(__m256i(a), __m256i(b)));
#else
  sum += vi(_mm_madd_epi16(__m128i(a), __m128i(b)));
#endif
  asm("" : "+x"(sum));
  return sum;
#else
  return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// Rows of inputs of a product, [count][k]. `sums` [count][k / 32]: those of x by group, or null. As integers:
// `pairs` [count][k / 2], in the order in which codes come out of words, and `scales` [count][k / 32]; or null.
struct Rows {
  int count;
  long k;
  const float *x, *sums;
  const int32_t* pairs;
  const float* scales;

  Rows part(int from, int to) const {
    const long groups = k / GROUP;
    return {to - from,
            k,
            x + from * k,
            sums ? sums + from * groups : nullptr,
            pairs ? pairs + from * k / 2 : nullptr,
            pairs ? scales + from * groups : nullptr};
  }
};

// A group of inputs: its largest becomes 32767. What is not finite makes its scale so, and what is next to nothing 0.
template <int PER>
inline void to_integers(const float* x, int32_t* pairs, float* scale, float* sum) {
  constexpr int PARTS = GROUP / 4;  // registers of four everywhere: what is summed across is short
  vf4 part[PARTS], top = {}, whole = {};
  for (int i = 0; i < PARTS; i++) {
    part[i] = load<vf4>(x + i * 4);
    const vf4 size = part[i] < 0.0f ? -part[i] : part[i];
    top = size > top ? size : top, whole += part[i];
  }
  const float most = std::max(std::max(top[0], top[1]), std::max(top[2], top[3]));
  *sum = (whole[0] + whole[1]) + (whole[2] + whole[3]);
  *scale = (most > LEAST ? most / 32767.0f : 0.0f) + 0.0f * *sum;
  const float by = most > LEAST ? 32767.0f / most : 0.0f;
  vi4 code[PARTS];  // to the nearest, of two to the even one
  for (int i = 0; i < PARTS; i++) code[i] = (vi4)(part[i] * by + 12582912.0f);
  for (int i = 0; i < PARTS; i += 2) {
    const vi4 a = code[i], b = code[i + 1];
    const vi4 low = PER == 8 ? a : vi4{a[0], a[1], b[0], b[1]}, high = PER == 8 ? b : vi4{a[2], a[3], b[2], b[3]};
    const vi4 made = (low & 0xffff) | high << 16;
    memcpy(pairs + i * 2, &made, sizeof made);
  }
}

// Sixteen weights of one input, as registers.
template <int KIND>
inline vf plain(const char* group, int k, int s) {
  if constexpr (KIND == F32) return load<vf>(reinterpret_cast<const float*>(group) + k * LANES + s * W);
  typedef uint16_t vh __attribute__((vector_size(2 * W)));
  const vh half = load<vh>(reinterpret_cast<const uint16_t*>(group) + k * LANES + s * W);
  return (vf)(__builtin_convertvector(half, vu) << 16);
}

// The processor's own prefetching stops at the end of a page.
inline void fetch(const char* weights, int bytes) {
  for (int line = 0; line < bytes; line += 64) __builtin_prefetch(weights + AHEAD + line);
}

// Weights of a panel's tiles that are read next: some bytes of each for every group that is computed now, into the
// second cache. All at once they would wait for memory, and the processor with them.
struct Ahead {
  const char* at;
  long tile;  // bytes from one to the next
  int step;

  void fetch(int group) const {
    for (int line = 0; line < step; line += 64)
      for (int t = 0; t < PANEL / LANES; t++) __builtin_prefetch(at + long(group) * step + line + t * tile, 0, 2);
  }
};

// What a group adds: its sum by the scales of codes and inputs, and its minimum. In a product of integers it is added
// in the same order whatever the number of rows.
inline vf grown(vf total, vi sum, vf by, vf least, float x_scale, float x_sum) {
  total += __builtin_convertvector(sum, vf) * (by * x_scale);
  total += least * x_sum;
  return total;
}

// out[R][16] = R rows of x times one tile.
template <int KIND, int R, bool INTEGERS>
void few(const char* tile, const Rows& rows, float* out, long ldo) {
  constexpr int CHAINS = R == 1 ? 4 : R == 2 || INTEGERS ? 2 : 1;  // sums that do not wait for each other
  const int groups = rows.k / GROUP;
  const long ldx = rows.k;
  const float *x = rows.x, *sums = rows.sums;
  vf total[R][SUB] = {};
  if constexpr (KIND == F32 || KIND == BF16) {
    vf part[R][SUB][CHAINS] = {};
    for (int g = 0; g < groups; g++, tile += KIND == F32 ? 2048 : 1024) {
      fetch(tile, KIND == F32 ? 2048 : 1024);
#pragma GCC unroll 8
      for (int k = 0; k < GROUP; k++)
#pragma GCC unroll 4
        for (int s = 0; s < SUB; s++) {
          const vf w = plain<KIND>(tile, k, s);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++) part[r][s][k % CHAINS] += w * x[r * ldx + g * GROUP + k];
        }
    }
    for (int r = 0; r < R; r++)
      for (int s = 0; s < SUB; s++)
        for (int c = 0; c < CHAINS; c++) total[r][s] += part[r][s][c];
  } else {
    constexpr int PER = per_word(KIND), WORDS = GROUP / PER;
    for (int g = 0; g < groups; g++) {
      const int32_t* words = reinterpret_cast<const int32_t*>(tile);
      const float* scale = reinterpret_cast<const float*>(words + WORDS * LANES);
      fetch(tile, (WORDS + 2) * 64);
#pragma GCC unroll 4
      for (int s = 0; s < SUB; s++) {
        std::conditional_t<INTEGERS, vi, vf> part[R][CHAINS] = {};
        if constexpr (INTEGERS && SUB > 1) asm volatile("" ::: "memory");  // inputs are read again: registers are few
#pragma GCC unroll 8
        for (int j = 0; j < WORDS; j++) {
          const vi word = load<vi>(words + j * LANES + s * W);
#pragma GCC unroll 8
          for (int e = 0; e < (INTEGERS ? PER / 2 : PER); e++) {
            if constexpr (INTEGERS) {
              const vi w = pair<KIND>(word, e);
#pragma GCC unroll 8
              for (int r = 0; r < R; r++)
                part[r][e % CHAINS] =
                    dot(part[r][e % CHAINS], w, rows.pairs[(r * groups + g) * (GROUP / 2) + j * PER / 2 + e] - vi{});
            } else {
              const vf w = code<KIND>(word, e);
#pragma GCC unroll 8
              for (int r = 0; r < R; r++) part[r][e % CHAINS] += w * x[r * ldx + g * GROUP + j * PER + e];
            }
          }
        }
        const vf by = load<vf>(scale + s * W), least = load<vf>(scale + LANES + s * W);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          auto sum = part[r][0];
#pragma GCC unroll 4
          for (int c = 1; c < CHAINS; c++) sum += part[r][c];
          if constexpr (INTEGERS)
            total[r][s] = grown(total[r][s], sum, by, least, rows.scales[r * groups + g], sums[r * groups + g]);
          else
            total[r][s] += sum * by + least * sums[r * groups + g];
        }
      }
      tile = reinterpret_cast<const char*>(scale + 2 * LANES);
    }
  }
  for (int r = 0; r < R; r++)
    for (int s = 0; s < SUB; s++) store(out + r * ldo + s * W, total[r][s]);
}

// One group of a tile as floats: out[32][stride], 16 of each line.
template <int KIND>
void decode(const char* group, float* out, long stride) {
  if constexpr (KIND == F32 || KIND == BF16) {
    for (int k = 0; k < GROUP; k++)
      for (int s = 0; s < SUB; s++) store(out + k * stride + s * W, plain<KIND>(group, k, s));
  } else {
    constexpr int PER = per_word(KIND), WORDS = GROUP / PER;
    const int32_t* words = reinterpret_cast<const int32_t*>(group);
    const float* scale = reinterpret_cast<const float*>(words + WORDS * LANES);
    for (int s = 0; s < SUB; s++) {
      const vf by = load<vf>(scale + s * W), least = load<vf>(scale + LANES + s * W);
      for (int j = 0; j < WORDS; j++) {
        const vi word = load<vi>(words + j * LANES + s * W);
#pragma GCC unroll 8
        for (int e = 0; e < PER; e++) store(out + (j * PER + e) * stride + s * W, code<KIND>(word, e) * by + least);
      }
    }
  }
}

void decode(const Matrix& a, const char* group, float* out, long stride) {
  switch (a.kind) {
    case F32: return decode<F32>(group, out, stride);
    case BF16: return decode<BF16>(group, out, stride);
    case Q8: return decode<Q8>(group, out, stride);
    default: return decode<Q4>(group, out, stride);
  }
}

// One group of a tile as integers: pairs [16][PANEL], and behind the panel's scales and minima [2][PANEL].
template <int KIND>
void decode_pairs(const char* group, int32_t* out) {
  constexpr int PER = per_word(KIND), WORDS = GROUP / PER;
  const int32_t* words = reinterpret_cast<const int32_t*>(group);
  for (int s = 0; s < SUB; s++) {
    for (int j = 0; j < WORDS; j++) {
      const vi word = load<vi>(words + j * LANES + s * W);
#pragma GCC unroll 4
      for (int e = 0; e < PER / 2; e++) {
        const vi made = pair<KIND>(word, e);
        memcpy(out + (j * PER / 2 + e) * PANEL + s * W, &made, sizeof made);
      }
    }
    for (int i = 0; i < 2; i++)
      memcpy(out + (GROUP / 2 + i) * PANEL + s * W, words + (WORDS + i) * LANES + s * W, 4 * W);
  }
}

constexpr int LINES = GROUP / 2 + 2;  // of a decoded group: pairs, scales, minima

// c[R][PANEL] += R rows of x, from group `begin` on, times panel[groups][LINES][PANEL].
template <int R>
void rank(const int32_t* panel, int begin, int groups, const Rows& x, float* c, const Ahead& ahead) {
  const long of_row = x.k / GROUP;
  const int32_t* pairs = x.pairs + begin * (GROUP / 2);
  const float *scales = x.scales + begin, *sums = x.sums + begin;
  vf total[R][VECS];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < VECS; v++) total[r][v] = load<vf>(c + r * PANEL + v * W);
  for (int g = 0; g < groups; g++, pairs += GROUP / 2, scales++, sums++) {
    ahead.fetch(g);
    vi sum[R][VECS] = {};
#pragma GCC unroll PAIRS
    for (int k = 0; k < GROUP / 2; k++, panel += PANEL) {
      vi w[VECS];
#pragma GCC unroll 4
      for (int v = 0; v < VECS; v++) w[v] = load<vi>(panel + v * W);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) {
        const vi one = pairs[r * of_row * (GROUP / 2) + k] - vi{};
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) sum[r][v] = dot(sum[r][v], w[v], one);
      }
    }
    vf by[VECS], least[VECS];
#pragma GCC unroll 4
    for (int v = 0; v < VECS; v++, panel += W) by[v] = load<vf>(reinterpret_cast<const float*>(panel));
#pragma GCC unroll 4
    for (int v = 0; v < VECS; v++, panel += W) least[v] = load<vf>(reinterpret_cast<const float*>(panel));
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int v = 0; v < VECS; v++)
        total[r][v] = grown(total[r][v], sum[r][v], by[v], least[v], scales[r * of_row], sums[r * of_row]);
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < VECS; v++) store(c + r * PANEL + v * W, total[r][v]);
}

template <int R>
void rank_of(const int32_t* panel, int begin, int groups, const Rows& x, float* c, const Ahead& ahead) {
  if (x.count == R) return rank<R>(panel, begin, groups, x, c, ahead);
  if constexpr (R > 1) rank_of<R - 1>(panel, begin, groups, x, c, ahead);
}

// c[R][PANEL] += x[R][depth] times panel[depth][PANEL].
template <int R>
void rank(const float* panel, int depth, const float* x, long ldx, float* c, const Ahead& ahead) {
  vf sum[R][VECS];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < VECS; v++) sum[r][v] = load<vf>(c + r * PANEL + v * W);
  for (int g = 0; g < depth / GROUP; g++) {
    ahead.fetch(g);
    for (int k = g * GROUP; k < (g + 1) * GROUP; k++) {
      vf w[VECS];
#pragma GCC unroll 4
      for (int v = 0; v < VECS; v++) w[v] = load<vf>(panel + long(k) * PANEL + v * W);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) {
        const vf one = all(x[r * ldx + k]);
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) sum[r][v] += one * w[v];
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < VECS; v++) store(c + r * PANEL + v * W, sum[r][v]);
}

template <int R>
void rank_of(int rows, const float* panel, int depth, const float* x, long ldx, float* c, const Ahead& ahead) {
  if (rows == R) return rank<R>(panel, depth, x, ldx, c, ahead);
  if constexpr (R > 1) rank_of<R - 1>(rows, panel, depth, x, ldx, c, ahead);
}

template <int KIND, bool INTEGERS = false, int R = FEW>
void few_of(const char* tile, const Rows& x, float* out) {
  if (x.count == R) return few<KIND, R, INTEGERS>(tile, x, out, PANEL);
  if constexpr (R > 1) few_of<KIND, INTEGERS, R - 1>(tile, x, out);
}

void few_of(const Matrix& a, const char* tile, const Rows& x, float* out) {
  switch (a.kind) {
    case F32: return few_of<F32>(tile, x, out);
    case BF16: return few_of<BF16>(tile, x, out);
    case Q8: return x.pairs ? few_of<Q8, true>(tile, x, out) : few_of<Q8>(tile, x, out);
    default: return x.pairs ? few_of<Q4, true>(tile, x, out) : few_of<Q4>(tile, x, out);
  }
}

// Call `what` with the ends of nearly equal parts of `count`, each of `most` or fewer.
template <class F>
inline void in_parts(int count, int most, F&& what) {
  const int parts = (count + most - 1) / most;
  for (int p = 0; p < parts; p++) what(count * p / parts, count * (p + 1) / parts);
}

// The panel `index` of x W^T: out [rows][PANEL]. Of many rows, the weights that come `next` are fetched meanwhile.
void panel_of(const Matrix& a, int index, const Rows& x, float* out, const char* next) {
  const int first = index * (PANEL / LANES), tiles = std::min(PANEL / LANES, (a.n + LANES - 1) / LANES - first);
  if (x.sums && x.count <= SEVERAL) {
    for (int t = 0; t < tiles; t++)
      in_parts(x.count, FEW, [&](int from, int to) {
        few_of(a, a.tile(first + t), x.part(from, to), out + from * PANEL + t * LANES);
      });
    return;
  }
  alignas(64) static thread_local float panel[DEPTH * PANEL];
  memset(out, 0, sizeof(float) * x.count * PANEL);
  for (int begin = 0; begin < a.k; begin += DEPTH) {
    const int depth = std::min(DEPTH, a.k - begin);
    for (int t = 0; t < tiles; t++) {
      const char* group = a.tile(first + t) + begin / GROUP * a.group_bytes();
      for (int k = 0; k < depth; k += GROUP, group += a.group_bytes())
        if (x.pairs) {
          int32_t* to = reinterpret_cast<int32_t*>(panel) + long(k) / GROUP * LINES * PANEL + t * LANES;
          a.kind == Q4 ? decode_pairs<Q4>(group, to) : decode_pairs<Q8>(group, to);
        } else {
          decode(a, group, panel + long(k) * PANEL + t * LANES, PANEL);
        }
    }
    const int groups = depth / GROUP, left = a.k - begin - depth, parts = (x.count + ROWS - 1) / ROWS;
    const long tile = a.k / GROUP * a.group_bytes(), coming = tile * std::min(DEPTH, left ? left : a.k) / a.k;
    Ahead ahead = {left ? a.tile(first) + tile - left / GROUP * a.group_bytes() : next, tile, 0};
    const char* const end = ahead.at + coming;
    const int step = int((coming / 64 + groups * parts - 1) / (groups * parts)) * 64;
    in_parts(x.count, ROWS, [&](int from, int to) {
      ahead.step = ahead.at < end ? step : 0;
      float* c = out + from * PANEL;
      if (x.pairs)
        rank_of<ROWS>(reinterpret_cast<int32_t*>(panel), begin / GROUP, depth / GROUP, x.part(from, to), c, ahead);
      else
        rank_of<ROWS>(to - from, panel, depth, x.x + long(from) * a.k + begin, a.k, c, ahead);
      ahead.at += groups * ahead.step;
    });
  }
}

// exp(x) to about 2e-7, for x up to 0 (Cephes' expf).
inline vf exponential(vf x) {
  x = x < -87.0f ? all(-87.0f) : x;
  const vi whole = __builtin_convertvector(x * 1.44269504f - 0.5f, vi);
  const vf n = __builtin_convertvector(whole, vf);
  const vf f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vf p = f * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  return p * (vf)((whole + 127) << 23);
}

enum Then { STORE, ADD, GATE };

// STORE: out = x a^T + bias. ADD: out += x a^T. GATE: out = silu(x gate^T) * (x a^T).
void multiply(Threads& threads, const float* x, int rows, const Matrix& a, const Matrix* gate, float* out, Then then) {
  static thread_local std::vector<float> sums, scales;  // of the thread that called for the step
  static thread_local std::vector<int32_t> pairs;
  const long groups = a.k / GROUP;
  Rows inputs = {rows, a.k, x, nullptr, nullptr, nullptr};
  if (a.integers && (!gate || gate->kind == a.kind)) {
    sums.resize(rows * groups), scales.resize(rows * groups), pairs.resize(rows * groups * GROUP / 2);
    inputs = {rows, a.k, x, sums.data(), pairs.data(), scales.data()};
    constexpr int PART = 8;
    threads.run((rows + PART - 1) / PART, [&, at = pairs.data(), scale = scales.data(), sum = sums.data()](int part) {
      for (long i = part * PART * groups; i < std::min(rows, (part + 1) * PART) * groups; i++)
        a.kind == Q4 ? to_integers<per_word(Q4)>(x + i * GROUP, at + i * GROUP / 2, scale + i, sum + i)
                     : to_integers<per_word(Q8)>(x + i * GROUP, at + i * GROUP / 2, scale + i, sum + i);
    });
  } else if (rows <= SEVERAL) {
    sums.resize(rows * groups), inputs.sums = sums.data();
    for (long i = 0; i < rows * groups; i++) {
      float s = 0;
      for (int k = 0; k < GROUP; k++) s += x[i * GROUP + k];
      sums[i] = s;
    }
  }
  const int panels = (a.n + PANEL - 1) / PANEL, blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  // A task of few rows is a few panels: claiming one costs as much as a small panel.
  const int together = rows <= SEVERAL ? std::max(1, 32768 / (a.k * PANEL) + 1) : 1;
  const int tasks = (panels + together - 1) / together;
  threads.run(tasks * blocks, [&](int task) {
    alignas(64) static thread_local float made[BLOCK_ROWS * PANEL], gates[BLOCK_ROWS * PANEL];
    const int from = BLOCK_ROWS * (task / tasks), count = std::min(BLOCK_ROWS, rows - from);
    const int last = std::min(panels, (task % tasks + 1) * together);
    for (int panel = task % tasks * together; panel < last; panel++) {
      const int tile = panel * (PANEL / LANES), later = tile + threads.count * (PANEL / LANES);
      panel_of(a, panel, inputs.part(from, from + count), made, gate ? gate->tile(tile) : a.tile(later));
      if (gate) panel_of(*gate, panel, inputs.part(from, from + count), gates, a.tile(later));
      const int left = panel * PANEL, width = std::min(PANEL, a.n - left);
      for (int r = 0; r < count; r++) {
        float* to = out + long(from + r) * a.n + left;
        const float* y = made + r * PANEL;
        if (then == GATE) {
          for (int i = 0; i < width; i += W) {
            const vf g = load<vf>(gates + r * PANEL + i), size = g < 0.0f ? g : -g, e = exponential(size);
            const vf half = 1.0f / (1.0f + e);  // sigmoid of |g|
            store(to + i, load<vf>(y + i) * g * (g < 0.0f ? e * half : half));
          }
        } else if (then == ADD) {
          for (int i = 0; i < width; i++) to[i] += y[i];
        } else {
          for (int i = 0; i < width; i++) to[i] = y[i] + (a.bias ? a.bias[left + i] : 0.0f);
        }
      }
    }
  });
}

// ---- norms, rotations, attention --------------------------------------------------------------------------

void norm(const float* x, const float* weight, int size, float eps, float* out) {
  vf sum = {};
  for (int i = 0; i < size; i += W) sum += load<vf>(x + i) * load<vf>(x + i);
  float square = 0;
  for (int i = 0; i < W; i++) square += sum[i];
  const float by = 1.0f / std::sqrt(square / float(size) + eps);
  for (int i = 0; i < size; i += W) store(out + i, load<vf>(x + i) * by * load<vf>(weight + i));
}

// Feature j turns with feature j + D / 2.
void rotate(float* head, const float* cosine, const float* sine, int half) {
  for (int i = 0; i < half; i++) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosine[i] - b * sine[i];
    head[i + half] = b * cosine[i] + a * sine[i];
  }
}

// scores[Q][stride] of P blocks of keys, from `at` on.
template <int Q, int P>
void score(const float* q, int size, const float* const* keys, float* scores, long stride) {
  vf sum[Q][P][SUB] = {};
  for (int d = 0; d < size; d++) {
    vf key[P][SUB];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++)
#pragma GCC unroll 4
      for (int s = 0; s < SUB; s++) key[p][s] = load<vf>(keys[p] + d * LANES + s * W);
#pragma GCC unroll 8
    for (int i = 0; i < Q; i++) {
      const vf one = all(q[i * size + d]);
#pragma GCC unroll 4
      for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int s = 0; s < SUB; s++) sum[i][p][s] += key[p][s] * one;
    }
  }
  for (int i = 0; i < Q; i++)
    for (int p = 0; p < P; p++)
      for (int s = 0; s < SUB; s++) store(scores + i * stride + p * LANES + s * W, sum[i][p][s]);
}

template <int Q>
void score_all(const float* q, int size, const float* const* keys, int blocks, float* scores, long stride) {
  constexpr int P = std::clamp(SUMS / (Q * SUB), 1, 4);
  int b = 0;
  for (; b + P <= blocks; b += P) score<Q, P>(q, size, keys + b, scores + b * LANES, stride);
  for (; b < blocks; b++) score<Q, 1>(q, size, keys + b, scores + b * LANES, stride);
}

// out[Q][size] += weights[Q][stride] times the values of `blocks` blocks; of V registers from feature `left` on.
template <int Q, int V>
void weigh(const float* weights, long stride, const float* const* values, int blocks, int size, int left, float* out) {
  vf sum[Q][V];
  for (int i = 0; i < Q; i++)
    for (int v = 0; v < V; v++) sum[i][v] = load<vf>(out + i * size + left + v * W);
  for (int b = 0; b < blocks; b++)
    for (int k = 0; k < LANES; k++) {
      vf value[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) value[v] = load<vf>(values[b] + k * size + left + v * W);
#pragma GCC unroll 6
      for (int i = 0; i < Q; i++) {
        const vf one = all(weights[i * stride + b * LANES + k]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sum[i][v] += one * value[v];
      }
    }
  for (int i = 0; i < Q; i++)
    for (int v = 0; v < V; v++) store(out + i * size + left + v * W, sum[i][v]);
}

template <int Q>
void weigh_all(const float* weights, long stride, const float* const* values, int blocks, int size, float* out) {
  constexpr int V = std::clamp(SUMS / Q, 1, 4);
  int left = 0;
  for (; left + V * W <= size; left += V * W) weigh<Q, V>(weights, stride, values, blocks, size, left, out);
  for (; left < size; left += W) weigh<Q, 1>(weights, stride, values, blocks, size, left, out);
}

template <int Q>
void score_of(int count, const float* q, int size, const float* const* keys, int blocks, float* s, long stride) {
  if (count == Q) return score_all<Q>(q, size, keys, blocks, s, stride);
  if constexpr (Q > 1) score_of<Q - 1>(count, q, size, keys, blocks, s, stride);
}

template <int Q>
void weigh_of(int count, const float* s, long stride, const float* const* values, int blocks, int size, float* out) {
  if (count == Q) return weigh_all<Q>(s, stride, values, blocks, size, out);
  if constexpr (Q > 1) weigh_of<Q - 1>(count, s, stride, values, blocks, size, out);
}

// Softmax of scores [CHUNK] against the greatest so far; the sum so far and `out` [size] are rescaled.
void soften(float* s, int count, float& greatest, float& sum, float* out, int size) {
  vf top = all(greatest);
  for (int i = 0; i < count; i += W) {
    const vf here = load<vf>(s + i);
    top = here > top ? here : top;
  }
  float most = top[0];
  for (int i = 1; i < W; i++) most = std::max(most, top[i]);
  if (most == -std::numeric_limits<float>::infinity()) {
    memset(s, 0, sizeof(float) * count);
    return;
  }
  if (most > greatest) {
    const float by = std::exp(greatest - most);
    sum *= by;
    for (int i = 0; i < size; i++) out[i] *= by;
    greatest = most;
  }
  vf total = {};
  for (int i = 0; i < count; i += W) {
    const vf here = load<vf>(s + i), weight = exponential(here - most), seen = here < -1e30f ? vf{} : weight;
    store(s + i, seen);
    total += seen;
  }
  for (int i = 0; i < W; i++) sum += total[i];
}

struct Layer {
  const float *input_norm, *q_norm, *k_norm, *mlp_norm;
  Matrix qkv, out, gate, up, down;
};

struct Model {
  int32_t layers, hidden, heads, kv_heads, head_dim, inner, pad0, pad1;
  float eps, pad2;
  const float *cosine, *sine, *norm;  // [positions][D / 2], the same, [hidden]
  const Layer* layer;
  Matrix embedding, head;
};

// Rows of tokens as `Batch` has them. `firsts` [R]: tokens before a row's. `until` [R]: null, or for a row that
// branches from its token `bases` on, the place from which each of its keys is not seen any more.
struct Step {
  int32_t tokens, rows, columns, page_size, wanted, pad;
  const int64_t *ids, *positions, *slots;
  const int32_t *starts, *firsts, *pages, *bases;
  const int32_t* const* until;
  const int64_t* places;  // [wanted]
};

// A pass over keys `from` to `to`: of tokens `begin` to `end` of a row, or of `rows` that have one token each, behind
// these keys, which are in the same pages.
struct Pass {
  int row, rows, begin, end, from, to;
};

// What the passes over a row's spans of keys give, until they are added up: of every head the greatest score, the sum
// and the weighed values. A token's begin at `at[token]`, span after span; -1 for one whose only pass has all its keys.
struct Spans {
  std::vector<long> at;
  std::vector<float> made;
};

void attend(const Model& m, const Step& step, const float* pool, const float* qkv, const Pass& pass, int head,
            Spans& spans, float* out) {
  const int size = m.head_dim, group = m.heads / m.kv_heads, row = pass.row, begin = pass.begin;
  const int queries = pass.rows * (pass.end - begin) * group, token = step.starts[row] + begin;
  const int width = (m.heads + 2 * m.kv_heads) * size, first = step.firsts[row];
  const long block = 2L * LANES * size;
  const float scale = 1.0f / std::sqrt(float(size));
  static thread_local std::vector<float> space;
  space.resize(long(QUERIES) * (2 * size + CHUNK));
  float *q = space.data(), *made = q + QUERIES * size, *s = made + QUERIES * size;
  float greatest[QUERIES], sum[QUERIES];
  for (int i = 0; i < queries; i++) {
    const float* from = qkv + long(token + i / group) * width + (head * group + i % group) * size;
    for (int d = 0; d < size; d++) q[i * size + d] = from[d] * scale;
    greatest[i] = -std::numeric_limits<float>::infinity(), sum[i] = 0;
  }
  memset(made, 0, sizeof(float) * queries * size);
  const int32_t *pages = step.pages + long(row) * step.columns, *until = step.until[row];
  for (int from = pass.from; from < pass.to; from += CHUNK) {
    const int blocks = (std::min(CHUNK, pass.to - from) + LANES - 1) / LANES, count = blocks * LANES;
    const float *keys[CHUNK / LANES], *values[CHUNK / LANES];
    for (int b = 0; b < blocks; b++) {
      const int place = from + b * LANES;
      const long slot = long(pages[place / step.page_size]) * step.page_size + place % step.page_size;
      keys[b] = pool + (slot / LANES * m.kv_heads + head) * block;
      values[b] = keys[b] + LANES * size;
    }
    for (int i = 0; i < queries; i += SCORED)
      score_of<SCORED>(std::min(SCORED, queries - i), q + i * size, size, keys, blocks, s + i * CHUNK, CHUNK);
    for (int i = 0; i < queries; i++) {
      const int own = pass.rows > 1 ? pass.to : first + begin + i / group;
      for (int k = std::max(0, own + 1 - from); k < count; k++) s[i * CHUNK + k] = -INFINITY;
      if (until)
        for (int k = std::max(0, step.bases[row] - from); k < count && from + k <= own; k++)
          if (until[from + k - step.bases[row]] <= own) s[i * CHUNK + k] = -INFINITY;
      soften(s + i * CHUNK, count, greatest[i], sum[i], made + i * size, size);
    }
    for (int i = 0; i < queries; i += 6)
      weigh_of<6>(std::min(6, queries - i), s + i * CHUNK, CHUNK, values, blocks, size, made + i * size);
  }
  for (int i = 0; i < queries; i++) {
    const int at = token + i / group, h = head * group + i % group;
    if (spans.at[at] < 0) {
      float* to = out + (long(at) * m.heads + h) * size;
      for (int d = 0; d < size; d++) to[d] = made[i * size + d] / sum[i];
    } else {
      float* to = &spans.made[spans.at[at] + (long(pass.from / SPAN) * m.heads + h) * (size + 2)];
      to[0] = greatest[i], to[1] = sum[i];
      memcpy(to + 2, made + i * size, sizeof(float) * size);
    }
  }
}

// The passes of a step, the same for each key-value head. How a row's keys are cut does not depend on other rows.
std::vector<Pass> passes_of(const Model& m, const Step& step, Spans& spans) {
  const int together = std::max(1, QUERIES / (m.heads / m.kv_heads));
  std::vector<Pass> passes;
  std::vector<int> before, now;  // a row's passes by span
  long made = 0;
  spans.at.assign(step.tokens, -1);
  for (int row = 0; row < step.rows; row++, before.swap(now)) {
    const int token = step.starts[row], count = step.starts[row + 1] - token, first = step.firsts[row];
    const int32_t* pages = step.pages + long(row) * step.columns;
    now.clear();
    if (count > together || first + count <= SPAN) {
      for (int begin = 0; begin < count; begin += together) {
        const int end = std::min(count, begin + together);
        passes.push_back({row, 1, begin, end, 0, first + end});
      }
      continue;
    }
    for (int from = 0; from < first + count; from += SPAN) {
      const bool seen = count == 1 && from + SPAN <= first && !step.until[row];  // all of the span
      const int32_t *begin = pages + from / step.page_size, *end = pages + (from + SPAN - 1) / step.page_size + 1;
      const int other = seen && now.size() < before.size() ? before[now.size()] : -1;
      if (other >= 0 && passes[other].rows < together && std::equal(begin, end, begin - step.columns)) {
        passes[other].rows++;
        now.push_back(other);
      } else {
        now.push_back(seen ? int(passes.size()) : -1);
        passes.push_back({row, 1, 0, count, from, std::min(first + count, from + SPAN)});
      }
    }
    for (int t = 0; t < count; t++) {
      spans.at[token + t] = made;
      made += long(now.size()) * m.heads * (m.head_dim + 2);
    }
  }
  spans.made.resize(made);
  return passes;
}

// Adds up `count` spans of a token, in their order; it may see no key of the last ones.
void add_up(const Model& m, const Spans& spans, int token, int count, float* out) {
  const int size = m.head_dim;
  for (int h = 0; h < m.heads; h++) {
    const auto at = [&](int span) { return &spans.made[spans.at[token] + (long(span) * m.heads + h) * (size + 2)]; };
    float greatest = -INFINITY, sum = 0, *to = out + (long(token) * m.heads + h) * size;
    for (int span = 0; span < count; span++) greatest = std::max(greatest, at(span)[0]);
    memset(to, 0, sizeof(float) * size);
    for (int span = 0; span < count; span++) {
      const float* made = at(span);
      const float by = std::exp(made[0] - greatest);
      sum += made[1] * by;
      for (int d = 0; d < size; d++) to[d] += made[2 + d] * by;
    }
    for (int d = 0; d < size; d++) to[d] /= sum;
  }
}

void embed(const Matrix& a, int64_t id, float* out) {
  float decoded[GROUP * LANES];
  const char* group = a.tile(int(id / LANES));
  for (int k = 0; k < a.k; k += GROUP, group += a.group_bytes()) {
    decode(a, group, decoded, LANES);
    for (int i = 0; i < GROUP; i++) out[k + i] = decoded[i * LANES + id % LANES];
  }
}

void forward(Threads& threads, const Model& m, const Step& step, float* pool, long layer_size, float* out) {
  const int tokens = step.tokens, size = m.head_dim, half = size / 2, turned = m.heads + m.kv_heads;
  const int width = (m.heads + 2 * m.kv_heads) * size;
  std::vector<float> x(long(tokens) * m.hidden), normed(x.size()), qkv(long(tokens) * width);
  std::vector<float> attended(long(tokens) * m.heads * size), inner(long(tokens) * m.inner);
  Spans spans;
  const std::vector<Pass> passes = passes_of(m, step, spans);
  // Tokens of one task where tokens are independent: a thread is not woken for one.
  const auto each = [&](int count, auto&& what) {
    constexpr int PART = 16;
    threads.run((count + PART - 1) / PART, [&](int part) {
      for (int t = part * PART; t < std::min(count, (part + 1) * PART); t++) what(t);
    });
  };
  each(tokens, [&](int t) { embed(m.embedding, step.ids[t], &x[long(t) * m.hidden]); });
  int rows = tokens;
  for (int index = 0; index < m.layers; index++) {
    const Layer& layer = m.layer[index];
    float* kv = pool + index * layer_size;
    each(rows, [&](int t) { norm(&x[long(t) * m.hidden], layer.input_norm, m.hidden, m.eps, &normed[long(t) * m.hidden]); });
    multiply(threads, normed.data(), rows, layer.qkv, nullptr, qkv.data(), STORE);
    each(rows, [&](int t) {
      float* heads = &qkv[long(t) * width];
      const float *cosine = m.cosine + step.positions[t] * half, *sine = m.sine + step.positions[t] * half;
      for (int h = 0; h < turned; h++) {
        const float* weight = h < m.heads ? layer.q_norm : layer.k_norm;
        if (weight) norm(heads + h * size, weight, size, m.eps, heads + h * size);
        rotate(heads + h * size, cosine, sine, half);
      }
      const int64_t slot = step.slots[t];
      for (int h = 0; h < m.kv_heads; h++) {
        float* keys = kv + (slot / LANES * m.kv_heads + h) * 2 * LANES * size;
        const float *k = heads + (m.heads + h) * size, *v = heads + (turned + h) * size;
        for (int d = 0; d < size; d++) keys[d * LANES + slot % LANES] = k[d];
        memcpy(keys + LANES * size + slot % LANES * size, v, sizeof(float) * size);
      }
    });
    // A key-value head's rows one after the other: what they share stays in the cache.
    threads.run(int(passes.size()) * m.kv_heads, [&](int i) {
      const Pass& pass = passes[i % passes.size()];
      attend(m, step, kv, qkv.data(), pass, i / int(passes.size()), spans, attended.data());
    });
    if (!spans.made.empty())
      threads.run(step.rows, [&](int row) {
        const int begin = step.starts[row], end = step.starts[row + 1];
        const int count = (step.firsts[row] + end - begin + SPAN - 1) / SPAN;
        for (int t = begin; t < end; t++)
          if (spans.at[t] >= 0) add_up(m, spans, t, count, attended.data());
      });
    if (index == m.layers - 1) {  // `places` ascend, so nothing is overwritten before it is read
      rows = step.wanted;
      for (int i = 0; i < rows; i++) {
        memmove(&x[long(i) * m.hidden], &x[step.places[i] * m.hidden], sizeof(float) * m.hidden);
        memmove(&attended[long(i) * m.heads * size], &attended[step.places[i] * m.heads * size], sizeof(float) * m.heads * size);
      }
    }
    multiply(threads, attended.data(), rows, layer.out, nullptr, x.data(), ADD);
    each(rows, [&](int t) { norm(&x[long(t) * m.hidden], layer.mlp_norm, m.hidden, m.eps, &normed[long(t) * m.hidden]); });
    multiply(threads, normed.data(), rows, layer.up, &layer.gate, inner.data(), GATE);
    multiply(threads, inner.data(), rows, layer.down, nullptr, x.data(), ADD);
  }
  each(rows, [&](int t) { norm(&x[long(t) * m.hidden], m.norm, m.hidden, m.eps, out + long(t) * m.hidden); });
}

// ---- samples ----------------------------------------------------------------------------------------------

// How a row chooses; see `sampler.py`, whose torch says the same.
struct Choice {
  float temperature, top_p, min_p;
  int32_t top_k;
  uint32_t low, high;  // of the key of its noise
};

struct Candidate {
  float logit;
  int id;
};

constexpr int BLOCK = 64;  // tokens that are looked at together
constexpr float MOST_NOISE = 69;  // finite, so that a token that is alone wins

template <class U>
inline U mix(U x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Above 0 and up to 1, of W tokens or one. A token's exponential, -log(1 - it), is never below it.
template <class F, class U>
inline F uniform(const Choice& c, U id) {
  const U bits = mix(mix(id * 0x9e3779b9u ^ c.low) ^ c.high) & 0x7fffffffu;
  if constexpr (std::is_same_v<F, float>)
    return (float(int32_t(bits)) + 0.5f) * 0x1p-31f;
  else
    return (__builtin_convertvector((vi)bits, F) + 0.5f) * 0x1p-31f;
}

inline float across(vf v, bool sum) {
  float made = v[0];
  for (int i = 1; i < W; i++) made = sum ? made + v[i] : v[i] > made ? v[i] : made;
  return made;
}

inline vf larger(vf a, vf b) { return a > b ? a : b; }

// Call `what` with each BLOCK logits of a row and the first one's id, -inf behind the last.
template <class F>
inline void by_blocks(const float* x, int vocab, F&& what) {
  int begin = 0;
  for (; begin + BLOCK <= vocab; begin += BLOCK) what(x + begin, begin);
  if (begin == vocab) return;
  float rest[BLOCK];
  std::fill(std::copy(x + begin, x + vocab, rest), rest + BLOCK, -INFINITY);
  what(rest, begin);
}

// Gives the largest, and that of each block; what is no number is below all that are.
float largest(const float* x, int vocab, float* peaks) {
  float top = -INFINITY;
  by_blocks(x, vocab, [&](const float* at, int begin) {
    vf most = all(-INFINITY);
    for (int i = 0; i < BLOCK; i += W) most = larger(load<vf>(at + i), most);
    top = std::max(top, peaks[begin / BLOCK] = across(most, false));
  });
  return top;
}

// All candidates that may be among the `count` largest: the `count`-th largest of the blocks' largest has as many
// tokens at or above it.
std::vector<Candidate> leading(const float* x, int vocab, const float* peaks, int count, float from = -INFINITY) {
  const int blocks = (vocab + BLOCK - 1) / BLOCK;
  if (0 < count && count <= blocks) {
    std::vector<float> most(peaks, peaks + blocks);
    std::nth_element(most.begin(), most.begin() + count - 1, most.end(), std::greater<float>());
    from = most[count - 1];
  }
  std::vector<Candidate> found;
  for (int b = 0; b < blocks; b++)
    if (peaks[b] >= from)
      for (int i = b * BLOCK; i < std::min(vocab, (b + 1) * BLOCK); i++)
        if (x[i] >= from) found.push_back({x[i], i});
  return found;
}

// The lowest logit that top_k, then top_p keep of candidates, which are all that lie above some logit; `total` is the
// mass of the row.
float lowest_kept(std::vector<Candidate>& found, const Choice& c, int vocab, float top, double total) {
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  const bool by_k = c.top_k > 0 && c.top_k < vocab;
  const int most = by_k ? std::min<int>(c.top_k, found.size()) : int(found.size());
  if (most == 0) return top;
  double left = total;
  if (by_k) {
    left = 0;
    for (int i = 0; i < most; i++) left += std::exp((found[i].logit - top) / c.temperature);
  }
  if (c.top_p >= 1) return found[most - 1].logit;
  double mass = 0;
  float lowest = found[0].logit;
  for (int i = 0; i < most && (i == 0 || mass < c.top_p * left); i++) {
    lowest = found[i].logit;
    mass += std::exp((lowest - top) / c.temperature);
  }
  return lowest;
}

// What wins the race among all wins it among the tokens that filters keep, too, if it is one of them: that is asked
// first. Where it is not, those that may be kept are gathered, and race alone.
int chosen(const float* x, int vocab, const Choice& c, float* peaks) {
  const float top = largest(x, vocab, peaks);
  if (!(c.temperature > 0) || !(top > -INFINITY)) {
    for (int i = 0; i < vocab; i++)
      if (x[i] == top) return i;
    return 0;
  }
  const float scale = std::min(1 / c.temperature, 3e38f);  // whose product with 0 is 0
  float best = INFINITY;
  int winner = 0;
  const auto race = [&](float logit, int id) {
    const float noise = std::min(-std::log1p(-uniform<float>(c, uint32_t(id))), MOST_NOISE);
    const float score = noise / std::exp((logit - top) / c.temperature);
    if (score < best) best = score, winner = id;
  };
  vu lane;
  for (int i = 0; i < W; i++) lane[i] = i;
  by_blocks(x, vocab, [&](const float* at, int begin) {
    vf bound[BLOCK / W];  // no score is below it, but for rounding
    vf least = all(INFINITY);
    for (int i = 0; i < BLOCK / W; i++) {
      const vf weight = exponential((load<vf>(at + i * W) - top) * scale);
      bound[i] = uniform<vf>(c, lane + uint32_t(begin + i * W)) * 0.9999f / weight;
      least = bound[i] < least ? bound[i] : least;
    }
    if (-across(-least, false) >= best) return;
    for (int i = 0; i < BLOCK; i++)
      if (bound[i / W][i % W] < best && at[i] > -INFINITY) race(at[i], begin + i);
  });
  const bool by_k = c.top_k > 0 && c.top_k < vocab, by_p = c.top_p < 1;
  if (!by_k && !by_p && !(c.min_p > 0)) return winner;

  const float won = x[winner], won_weight = std::exp((won - top) / c.temperature);
  bool kept = !(c.min_p > 0) || won_weight >= c.min_p;
  long above = 0;
  double heavier = 0, total = 0;
  if (by_k || by_p)
    by_blocks(x, vocab, [&](const float* at, int) {
      vf some{}, whole{};
      vi more{};
      for (int i = 0; i < BLOCK; i += W) {
        const vf here = load<vf>(at + i), weight = here > -INFINITY ? exponential((here - top) * scale) : vf{};
        whole += weight;
        some += here > won ? weight : vf{};
        more -= here > won;
      }
      total += across(whole, true), heavier += across(some, true);
      for (int i = 0; i < W; i++) above += more[i];
    });
  if (by_k) kept = kept && above < c.top_k && !by_p;  // of what top_k leaves top_p counts the mass below
  if (by_p && !by_k) kept = kept && heavier < c.top_p * total;
  if (kept) return winner;

  const float from = by_k ? -INFINITY : std::nextafter(won, INFINITY);
  std::vector<Candidate> found = leading(x, vocab, peaks, by_k ? c.top_k : 0, from);
  float lowest = by_k || by_p ? lowest_kept(found, c, vocab, top, total) : from;
  best = INFINITY;
  for (const Candidate& one : found) {
    const float weight = std::exp((one.logit - top) / c.temperature);
    if (one.logit >= lowest && weight >= c.min_p) race(one.logit, one.id);
  }
  return winner;
}

// The natural logarithm of the sum of exp(x).
float log_sum(const float* x, int vocab, float* peaks) {
  const float top = largest(x, vocab, peaks);
  double sum = 0;
  by_blocks(x, vocab, [&](const float* at, int) {
    vf some{};
    for (int i = 0; i < BLOCK; i += W) some += exponential(load<vf>(at + i) - top);
    sum += across(some, true);
  });
  return top + float(std::log(sum));
}

std::mutex busy;  // one step at a time: every core is its
// Models that were loaded with other counts have pools of their own: a process that takes them in turns must not begin
// new threads every time.
Threads& pool_of(int count) {
  static std::map<int, Threads*> pools;
  Threads*& pool = pools[count];
  if (!pool || pool->pid != getpid()) pool = new Threads(count);  // a fork has no threads
  return *pool;
}

}  // namespace

extern "C" {

// pool: float [layers][blocks][kv heads][2][16 * D], of `layer_size` floats a layer. out: float [wanted][hidden].
void sglc_forward(int threads, const Model* model, const Step* step, float* pool, long layer_size, float* out) {
  std::lock_guard<std::mutex> lock(busy);
  ask_for_short_slices();
  forward(pool_of(threads), *model, *step, pool, layer_size, out);
}

// hidden: float [rows][hidden] -> out: float [rows][vocabulary].
void sglc_logits(int threads, const Model* model, const float* hidden, int rows, float* out) {
  std::lock_guard<std::mutex> lock(busy);
  multiply(pool_of(threads), hidden, rows, model->head, nullptr, out, STORE);
}

// logits and what of them may be sampled: float [rows][vocabulary] -> ids: int64 [rows], and their log-probabilities.
void sglc_choose(int threads, const float* logits, const float* allowed, int rows, int vocab, const Choice* choices,
                 int64_t* ids, float* logprobs) {
  std::lock_guard<std::mutex> lock(busy);
  pool_of(threads).run(rows, [&](int row) {
    std::vector<float> peaks((vocab + BLOCK - 1) / BLOCK);
    const long at = long(row) * vocab;
    ids[row] = chosen(allowed + at, vocab, choices[row], peaks.data());
    logprobs[row] = logits[at + ids[row]] - log_sum(logits + at, vocab, peaks.data());
  });
}

// logits: float [rows][vocabulary] -> the logarithm of the sum of their exponentials: float [rows].
void sglc_log_sums(int threads, const float* logits, int rows, int vocab, float* out) {
  std::lock_guard<std::mutex> lock(busy);
  pool_of(threads).run(rows, [&](int row) {
    std::vector<float> peaks((vocab + BLOCK - 1) / BLOCK);
    out[row] = log_sum(logits + long(row) * vocab, vocab, peaks.data());
  });
}

// logits: float [rows][vocabulary] -> the likeliest, best first: int64 and float [rows][count].
void sglc_likeliest(int threads, const float* logits, int rows, int vocab, int count, int64_t* ids, float* logprobs) {
  std::lock_guard<std::mutex> lock(busy);
  pool_of(threads).run(rows, [&](int row) {
    std::vector<float> peaks((vocab + BLOCK - 1) / BLOCK);
    const float* x = logits + long(row) * vocab;
    const float sum = log_sum(x, vocab, peaks.data());
    std::vector<Candidate> found = leading(x, vocab, peaks.data(), count);
    found.resize(std::max<size_t>(found.size(), count), {-INFINITY, 0});  // of numbers there may be fewer
    std::partial_sort(found.begin(), found.begin() + count, found.end(), [](const Candidate& a, const Candidate& b) {
      return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
    });
    for (int i = 0; i < count; i++) {
      ids[long(row) * count + i] = found[i].id;
      logprobs[long(row) * count + i] = found[i].logit - sum;
    }
  });
}
}

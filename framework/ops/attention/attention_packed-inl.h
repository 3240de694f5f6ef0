// What attention copies its operands into: keys and values, query rows, and tiles of scores, in the words of the
// products that they enter. Included once per target after attention_tile-inl.h, hence no include guard.
#include "framework/tensor/buffer.h"

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {

// Hands out pieces of a part's scratch memory; counts only when it has none.
class Pieces {
 public:
  explicit Pieces(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(int64_t elements) {
    T* piece = memory_ ? reinterpret_cast<T*>(memory_ + used_bytes_) : nullptr;
    used_bytes_ += (elements * int64_t(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
  template <class T>
  Matrix<T> matrix(int64_t rows, int64_t columns) {
    return {take<T>(rows * row_stride(columns)), row_stride(columns)};
  }
  int64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* memory_;
  int64_t used_bytes_ = 0;
};

// Tiles are of bf16 pairs where the values are bf16 and the CPU multiplies pairs, else of fp32.

// Keys or values of one team, by tiles of kTileKeys.
template <class Word>
struct PackedKeys {
  int64_t keys, head_dim;
  Matrix<Word> rows;           // words of keys [keys, d], for products over keys
  Word* transposed = nullptr;  // words of dims: per tile [d, kTileKeys], for products over d
  Matrix<Word> natural;        // kUnit keys; of pairs only
  Matrix<Word> ends;           // what hide_ends hides
  bool finite = true;

  static constexpr int64_t kUnit = 16;  // tiles are whole in this many keys
  int64_t width() const { return words_of<Word>(head_dim); }
  int64_t tile_words() const { return vectors_of(width()) * lanes() * kScoreStride; }
  int64_t tiles() const { return (keys + kTileKeys - 1) / kTileKeys; }
  Matrix<Word> transposed_tile(int64_t tile) const { return {transposed + tile * tile_words(), kScoreStride}; }
  Matrix<Word> rows_from(int64_t key) const { return rows.at(key / kValuesOf<Word>, 0); }

  void take(Pieces& pieces, bool want_transposed) {
    rows = pieces.matrix<Word>(words_of<Word>((keys + kUnit - 1) / kUnit * kUnit), head_dim);
    if (want_transposed) transposed = pieces.take<Word>(tiles() * tile_words());
    if constexpr (std::is_same_v<Word, Pair>) {
      natural = pieces.matrix<Word>(kUnit, width());
      ends = pieces.matrix<Word>(2, head_dim);
    }
  }
  template <class T>
  void pack(const ConstTensor& tensor, int64_t b, int64_t g) {
    pack(Matrix<const T>{tensor.as<T>() + b * tensor.stride(0) + g * tensor.stride(2), tensor.stride(1)});
  }
  template <class T>
  void pack(Matrix<const T> from) requires std::is_same_v<Word, float> {
    finite = pack_rows(rows, from, keys, head_dim, 1.f);
    if (!transposed) return;
    const int64_t whole = (keys + kUnit - 1) / kUnit * kUnit;
    std::fill(rows.row(keys), rows.row(whole), 0.f);
    for (int64_t key = 0; key < keys; key += kTileKeys)
      transpose(transposed_tile(key / kTileKeys), rows.at(key, 0), std::min(kTileKeys, whole - key), head_dim);
  }
  void pack(Matrix<const bf16> from) requires std::is_same_v<Word, Pair> {
    finite = true;
    for (int64_t key = 0; key < keys; key += kUnit) {
      finite &= copy_rows(natural, from.at(key, 0), std::min(kUnit, keys - key), kUnit, head_dim);
      zip_rows(rows_from(key), natural, kUnit, head_dim);
      if (transposed) transpose(transposed_tile(key / kTileKeys).at(0, key % kTileKeys), natural, kUnit, width());
    }
  }
  // Of pairs that a row sees one key of, the other one: 0 until it is shown again, or 0 * NaN would reach the row.
  void hide_ends(Matrix<Word> rows, Interval seen) const {
    if constexpr (std::is_same_v<Word, Pair>) {
      const auto hide = [&](int64_t end, Pair* row, Pair kept) {
        std::copy_n(row, head_dim, ends.row(end));
        std::transform(row, row + head_dim, row, [&](Pair pair) { return pair & kept; });
      };
      if (seen.begin % 2 != 0) hide(0, rows.row(seen.begin / 2), 0xffff0000u);
      if (seen.end % 2 != 0) hide(1, rows.row(seen.end / 2), 0x0000ffffu);
    }
  }
  void show_ends(Matrix<Word> rows, Interval seen) const {
    if constexpr (std::is_same_v<Word, Pair>) {
      if (seen.begin % 2 != 0) std::copy_n(ends.row(0), head_dim, rows.row(seen.begin / 2));
      if (seen.end % 2 != 0) std::copy_n(ends.row(1), head_dim, rows.row(seen.end / 2));
    }
  }
};

// Query rows of a block, or of the output's gradient.
template <class Word>
struct PackedQueries {
  int64_t head_dim;
  Matrix<Word> rows;    // [kBlockRows, words of d], for products over d; of fp32 also for those over rows
  Matrix<Word> zipped;  // [words of kBlockRows, d], for products over rows

  void take(Pieces& pieces, bool want_zipped) {
    rows = zipped = pieces.matrix<Word>(kBlockRows, words_of<Word>(head_dim));
    if (std::is_same_v<Word, Pair> && want_zipped) zipped = pieces.matrix<Word>(words_of<Pair>(kBlockRows), head_dim);
  }
  // Whether all values are finite. Rows of fp32 are taken times `scale`; of pairs as they are.
  template <class T>
  bool pack(Matrix<const T> from, int64_t n, float scale) {
    if constexpr (std::is_same_v<Word, float>) {
      return pack_rows(rows, from, n, head_dim, scale);
    } else {
      const int64_t height = 2 * words_of<Pair>(n);
      const bool finite = copy_rows(rows, from, n, height, head_dim);
      if (zipped.data != rows.data) zip_rows(zipped, rows, height, head_dim);
      return finite;
    }
  }
};

// A tile of scores, or of what becomes of them, and the same in the words of the products that it enters; fp32 stays
// where it is. What is hidden is 0.
template <class Word>
struct ScoreTile {
  Matrix<float> values;  // [kBlockRows, kTileKeys]
  Matrix<Word> by_keys;  // [kBlockRows, words of kTileKeys]
  Matrix<Word> by_rows;  // [words of kBlockRows, kTileKeys]

  void take(Pieces& pieces, bool want_by_keys, bool want_by_rows) {
    values = pieces.matrix<float>(kBlockRows, kTileKeys);
    if constexpr (std::is_same_v<Word, Pair>) {
      if (want_by_keys) by_keys = pieces.matrix<Pair>(kBlockRows, words_of<Pair>(kTileKeys));
      if (want_by_rows) by_rows = pieces.matrix<Pair>(words_of<Pair>(kBlockRows), kTileKeys);
    } else {
      by_keys = by_rows = values;
    }
  }
  void narrow_keys(const TileView& view) const {
    if constexpr (std::is_same_v<Word, Pair>)
      for (int64_t i = 0; i < view.rows; ++i) {
        const Interval seen = view.group[i / kGroup], keys = padded(seen);
        if (seen.empty()) continue;
        float* row = values.row(i);
        if (seen.begin % 2 != 0) row[seen.begin - 1] = 0;
        if (seen.end % 2 != 0) row[seen.end] = 0;
        cpu::narrow(by_keys.row(i) + keys.begin / 2, row + keys.begin, keys.size());
      }
  }
  // Pairs times `factor`.
  void narrow_rows(const TileView& view, float factor) const {
    if constexpr (std::is_same_v<Word, Pair>) {
      const Interval keys = padded(view.seen);
      if (view.rows % 2 != 0) std::fill(values.row(view.rows) + keys.begin, values.row(view.rows) + keys.end, 0.f);
      for (int64_t i = 0; i < view.rows; i += 2)
        cpu::narrow_rows(by_rows.row(i / 2) + keys.begin, values.row(i) + keys.begin, values.row(i + 1) + keys.begin,
                         keys.size(), factor);
    }
  }
};

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

package series

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestOrdinalsRoundTrip(t *testing.T) {
	for i := -8192; i <= 8192; i++ {
		if got := toValue(toOrdinal(float64(i))); got != float64(i) {
			t.Fatalf("%d is kept as %v", i, got)
		}
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if toOrdinal(v) != none || !math.IsNaN(toValue(toOrdinal(v))) {
			t.Errorf("%v is a value", v)
		}
	}
	if v := toValue(toOrdinal(math.MaxFloat64)); math.IsInf(v, 0) || v < math.MaxFloat64*0.999 {
		t.Errorf("the greatest value is kept as %v", v)
	}
}

func TestOrdinalsKeepOrderAndPrecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Float64().Draw(t, "a"), rapid.Float64().Draw(t, "b")
		if a > b {
			a, b = b, a
		}
		x, y := toOrdinal(a), toOrdinal(b)
		if x > y {
			t.Fatalf("%v < %v but %d > %d", a, b, x, y)
		}
		if toOrdinal(toValue(x)) != x {
			t.Fatalf("%d does not survive", x)
		}
		if math.Abs(a) > 1e-300 && math.Abs(toValue(x)-a) > math.Abs(a)*0x1p-13 {
			t.Fatalf("%v is kept as %v", a, toValue(x))
		}
	})
}

func TestFoldAgainstValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.OneOf(rapid.Float64Range(-1e6, 1e6), rapid.Just(math.NaN())), 0, 30).Draw(t, "values")
		var cells []cell
		low, high, sum, scale, n := math.Inf(1), math.Inf(-1), 0.0, 0.0, 0
		for _, v := range values {
			c := cell{}
			if o := toOrdinal(v); o != none {
				c = cell{n: 1, min: o, mean: o, max: o}
				low, high, sum, n = min(low, v), max(high, v), sum+v, n+1
				scale = max(scale, math.Abs(v))
			}
			cells = append(cells, c)
		}
		got := fold(cells).point()
		if got.Count != n {
			t.Fatalf("%d values counted as %d", n, got.Count)
		}
		if n == 0 {
			if !math.IsNaN(got.Mean) || !math.IsNaN(got.Min) || !math.IsNaN(got.Max) {
				t.Fatalf("a gap is %+v", got)
			}
			return
		}
		near := func(a, b float64) bool { return math.Abs(a-b) <= scale*0x1p-12 }
		if !near(got.Min, low) || !near(got.Max, high) || !near(got.Mean, sum/float64(n)) {
			t.Fatalf("%+v of %v", got, values)
		}
		if got.Min > got.Mean || got.Mean > got.Max {
			t.Fatalf("out of order: %+v", got)
		}
	})
}

func TestFoldAtTheEndsOfTheScale(t *testing.T) {
	o := maxOrdinal
	full := slices.Repeat([]cell{{n: 120, min: o, mean: o, max: o}}, 1000)
	if got := fold(full); got != (cell{n: 120_000, min: o, mean: o, max: o}) {
		t.Errorf("%+v", got)
	}
}

func TestColumnsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Uint32Range(0, 3), rapid.Uint32Range(0, 1<<rawBits-1), rapid.Just(uint32(7)))
		var columns [][]uint32
		var w bitWriter
		for range rapid.IntRange(1, 5).Draw(t, "columns") {
			one := rapid.OneOf(rapid.SliceOfN(number, 0, 70), rapid.SliceOfN(rapid.Just(uint32(9)), 0, 70)).Draw(t, "numbers")
			columns = append(columns, one)
			w.column(one)
		}
		r := bitReader{buf: w.finish()}
		for _, want := range columns {
			got := make([]uint32, len(want))
			if r.column(got); !slices.Equal(got, want) || r.short {
				t.Fatalf("%v became %v", want, got)
			}
		}
	})
}

func drawBlock(t *rapid.T, l level) block {
	b := newBlock(rapid.IntRange(0, 5).Draw(t, "fields"), l.points)
	for f := range b.fields {
		o := rapid.Int32Range(-maxOrdinal/2, maxOrdinal/2).Draw(t, "level")
		for i := range b.field(f) {
			c := &b.field(f)[i]
			c.n = rapid.OneOf(rapid.Just(int32(l.step)), rapid.Int32Range(0, int32(l.step))).Draw(t, "n")
			if c.n == 0 {
				continue
			}
			o = max(min(o+rapid.OneOf(rapid.Int32Range(-5, 5), rapid.Int32Range(-maxOrdinal, maxOrdinal)).Draw(t, "change"), maxOrdinal), -maxOrdinal)
			*c = cell{n: c.n, min: o, mean: o, max: o}
			if l.step > 1 {
				c.min = max(o-rapid.Int32Range(0, 1<<20).Draw(t, "down"), -maxOrdinal)
				c.max = min(o+rapid.Int32Range(0, 1<<20).Draw(t, "up"), maxOrdinal)
			}
		}
	}
	return b
}

func TestSegmentsKeepBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := levels[rapid.IntRange(0, coarsest).Draw(t, "level")]
		c := newCodec(l)
		want := map[uint32]block{}
		var w segmentWriter
		for id := range uint32(6) {
			if rapid.Bool().Draw(t, "there") {
				want[id*16] = drawBlock(t, l)
				w.add(id*16, c, want[id*16])
			}
		}
		data := w.bytes()
		s, err := openSegment(data)
		if err != nil || s.n != len(want) {
			t.Fatal(err, s.n)
		}
		for id := range uint32(100) {
			b, there := want[id]
			raw, err := s.find(id)
			if err != nil || (raw != nil) != there {
				t.Fatalf("%d: %v, %v", id, raw, err)
			}
			if !there {
				continue
			}
			if got, err := c.decode(raw); err != nil || got.fields != b.fields || !slices.Equal(got.cells, b.cells) {
				t.Fatalf("%v\n%v\n%v", err, got, b)
			}
		}
		// A flipped bit is detected or makes the series look absent. No other value is
		// read, and nothing panics.
		if len(want) == 0 {
			return
		}
		bit := rapid.IntRange(segmentHead*8, len(data)*8-1).Draw(t, "bit")
		data[bit/8] ^= 1 << (bit % 8)
		for id, b := range want {
			raw, err := s.find(id)
			if err != nil || raw == nil {
				continue
			}
			if got, err := c.decode(raw); err != nil || !slices.Equal(got.cells, b.cells) {
				t.Fatalf("bit %d: %v", bit, err)
			}
		}
	})
}

// FuzzDecode: for any bytes the decoder ends without a panic, and its ordinals are in
// range.
func FuzzDecode(f *testing.F) {
	for i, l := range levels {
		b := newBlock(2, l.points)
		for j := range b.cells {
			b.cells[j] = cell{n: int32(l.step), min: int32(j), mean: int32(j), max: int32(j)}
		}
		f.Add(byte(i), newCodec(l).encode(nil, b))
	}
	f.Fuzz(func(t *testing.T, level byte, data []byte) {
		l := levels[int(level)%len(levels)]
		b, err := newCodec(l).decode(data)
		if err != nil {
			return
		}
		for _, c := range b.cells {
			if c.n < 0 || int64(c.n) > l.step || c.n > 0 && (c.min > c.mean || c.mean > c.max || c.min < -maxOrdinal || c.max > maxOrdinal) {
				t.Fatalf("%+v", c)
			}
		}
	})
}

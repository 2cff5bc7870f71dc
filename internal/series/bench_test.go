package series

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// load generates values like those of nodes and edges: utilisations that vary slowly,
// bytes of memory that grow and shrink, counts that rarely change, and round trips with
// noise and outliers.
type load struct {
	rng     *rand.Rand
	samples []Sample
	state   []float64
}

var benchKinds = []Kind{
	{Name: "node", Fields: []string{"cpu", "memory", "disk", "rx", "tx", "instances"}},
	{Name: "edge", Fields: []string{"p50", "p90", "p99", "jitter", "loss", "samples"}},
}

func newLoad(nodes, edges int) *load {
	l := &load{rng: rand.New(rand.NewPCG(1, 2))}
	for i := range nodes {
		l.samples = append(l.samples, Sample{Kind: "node", Key: fmt.Sprintf("node-%05d.region", i), Values: make([]float64, 6)})
	}
	for i := range edges {
		l.samples = append(l.samples, Sample{Kind: "edge", Key: fmt.Sprintf("region-%02d>region-%02d", i/33, i%33), Values: make([]float64, 6)})
	}
	l.state = make([]float64, len(l.samples))
	for i := range l.state {
		l.state[i] = l.rng.Float64()
	}
	return l
}

func (l *load) next() []Sample {
	for i := range l.samples {
		l.state[i] = min(max(l.state[i]+0.02*l.rng.NormFloat64(), 0), 1)
		u, v := l.state[i], l.samples[i].Values
		if l.samples[i].Kind == "node" {
			v[0] = 32 * u
			v[1] = 64e9*(0.3+0.5*u) + 1e7*l.rng.NormFloat64()
			v[2] = 1e12*u/4 + 1e9
			v[3] = 1e6 * math.Exp(l.rng.NormFloat64()/2)
			v[4] = 2e6 * math.Exp(l.rng.NormFloat64()/2)
			v[5] = math.Floor(20 * u)
			continue
		}
		base := 20 + float64(i%200)
		v[0] = base * (1 + 0.005*math.Abs(l.rng.NormFloat64()))
		v[1] = v[0] * (1 + 0.01*math.Abs(l.rng.NormFloat64()))
		v[2] = v[1] * (1 + 0.1*l.rng.ExpFloat64())
		v[3] = 0.3 * math.Exp(l.rng.NormFloat64()/2)
		v[4] = 0
		if l.rng.IntN(200) == 0 {
			v[4] = 0.01
		}
		v[5] = 60
	}
	return l.samples
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func written() (n int64) {
	data, _ := os.ReadFile("/proc/self/io")
	for line := range strings.Lines(string(data)) {
		_, _ = fmt.Sscanf(line, "write_bytes: %d", &n)
	}
	return n
}

// BenchmarkAppend measures the whole load: one operation is 5 seconds of 11,000 series of
// 6 fields, with their share of synced writes and of compactions. Run it with
// -benchtime=720x or a multiple, so that it covers whole hours.
func BenchmarkAppend(b *testing.B) {
	path := filepath.Join(b.TempDir(), "series.db")
	s, err := open(path, benchKinds, Limits{}, nil, false)
	if err != nil {
		b.Fatal(err)
	}
	l := newLoad(10_000, 1_000)
	now := time.Unix(1_800_000_000, 0)
	var appending, cycling, slowest time.Duration
	var cycled time.Duration
	wrote := written()
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		samples := l.next()
		b.StartTimer()
		at := cpu()
		if err := s.Append(now, samples); err != nil {
			b.Fatal(err)
		}
		appending += cpu() - at
		if i%12 == 0 {
			at, wall := cpu(), time.Now()
			s.cycle()
			cycling += cpu() - at
			cycled += time.Since(wall)
			slowest = max(slowest, time.Since(wall))
		}
		now = now.Add(Base)
	}
	b.StopTimer()
	n := float64(b.N)
	b.ReportMetric(float64(appending.Microseconds())/n, "append-cpu-µs/op")
	b.ReportMetric(float64((appending+cycling).Microseconds())/n, "cpu-µs/op")
	b.ReportMetric((appending+cycling).Seconds()/(n*Base.Seconds()), "cores")
	b.ReportMetric(float64(slowest.Milliseconds()), "slowest-write-ms")
	b.ReportMetric(float64(written()-wrote)/n/Base.Seconds()/1e3, "written-kB/s")
	b.ReportMetric(float64(s.Stats().UsedBytes)/1e6, "file-used-MB")
	b.ReportMetric(float64(s.Stats().FileBytes)/1e6, "file-MB")
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/1e6, "heap-MB")
	if st := s.Stats(); st.Failing != nil || st.SetAside > 0 || st.LostMinutes > 0 {
		b.Fatalf("%+v", st)
	}
	_ = s.Close()
}

// history returns a store with a little more than six hours of a smaller load, so that
// every level has a whole segment.
func history(b *testing.B) (*Store, time.Time) {
	s, err := open(filepath.Join(b.TempDir(), "series.db"), benchKinds, Limits{}, nil, true)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	l, now := newLoad(200, 20), epoch
	for range 6*720 + 12*20*shards {
		if err := s.Append(now, l.next()); err != nil {
			b.Fatal(err)
		}
		s.cycle()
		now = now.Add(Base)
	}
	return s, now
}

// BenchmarkSizes reports the size on disk of a series of 6 fields when every level is
// full.
func BenchmarkSizes(b *testing.B) {
	s, _ := history(b)
	bytes, segments := [len(levels)]float64{}, [len(levels)]float64{}
	err := s.file.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketData).ForEach(func(k, v []byte) error {
			bytes[k[0]] += float64(len(k) + len(v))
			segments[k[0]] += 1.0 / shards
			return nil
		})
	})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
	}
	total := 0.0
	for i, l := range levels {
		all := bytes[i] / segments[i] / 220 * float64(l.keep/l.span()+1)
		b.ReportMetric(all/1e3, fmt.Sprintf("level%d-kB/series", i))
		total += all
	}
	b.ReportMetric(total/1e3, "all-kB/series")
}

// BenchmarkQuery queries one series among 220: the last hour by 5 s, the day by a minute,
// the month by an hour, and the whole six hours.
func BenchmarkQuery(b *testing.B) {
	s, now := history(b)
	for _, q := range []struct {
		name string
		span time.Duration
		step time.Duration
	}{{"hour", time.Hour, Base}, {"hour-300-points", time.Hour, 0}, {"day", 24 * time.Hour, time.Minute}, {"month", 31 * 24 * time.Hour, time.Hour}} {
		b.Run(q.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Query("node", "node-00007.region", now.Add(-q.span), now, q.step); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkTrend(b *testing.B) {
	points := row(1440, func(i int) float64 { return float64(i*i%97 + i) })
	for b.Loop() {
		FitTrend(epoch, time.Minute, points)
	}
}

package global

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/predict"
)

// manyRegions is a reign over n regions on a plane, each with a session that
// nobody reads, and a virtual clock.
type manyRegions struct {
	a     *active
	names []string
	x, y  []float64
	now   time.Duration
	r     *rand.Rand
}

func newManyRegions(n int) *manyRegions {
	m := &manyRegions{r: rand.New(rand.NewPCG(1, 2))}
	clock := func() time.Duration { return m.now }
	m.a = &active{
		cfg: &Config{ReportInterval: 5 * time.Second, CheckpointInterval: 30 * time.Second, Clock: clock},
		st:  New("e", clock, time.Hour), woken: make(chan struct{}, 1),
	}
	for i := range n {
		name := fmt.Sprintf("region-%04d", i)
		m.names = append(m.names, name)
		m.x, m.y = append(m.x, 200*m.r.Float64()), append(m.y, 200*m.r.Float64())
		m.a.st.Regions[name] = &Region{Name: name, Record: &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}}}
		m.a.st.Regions[name].Session = &session{a: m.a, region: name, woken: make(chan struct{}, 1), columnAt: -time.Hour}
	}
	m.a.st.RegionsChanged()
	return m
}

// row is what a region measured to those for whom take says so.
func (m *manyRegions) row(i int, full bool, take func(j int) bool) []byte {
	out := &nusav1.LatencyRow{Full: full}
	for j := range m.names {
		if i == j || !take(j) {
			continue
		}
		dx, dy := m.x[i]-m.x[j], m.y[i]-m.y[j]
		ms := (2 + (dx*dx+dy*dy)/200) * (1 + 0.1*m.r.Float64())
		p50 := time.Duration(ms * 1e6)
		out.Edges = append(out.Edges, &nusav1.Edge{
			From: m.names[i], To: m.names[j], State: nusav1.EdgeState_EDGE_STATE_OK, Source: nusav1.RTTSource_RTT_SOURCE_MEASURED,
			P50: durationpb.New(p50), P90: durationpb.New(p50 + p50/10), P99: durationpb.New(p50 + p50/5),
			Min: durationpb.New(p50 - p50/20), Jitter: durationpb.New(p50 / 50), Age: durationpb.New(time.Second),
			Loss: 0.01, Samples: 100, Method: "udp",
		})
	}
	raw, err := proto.Marshal(out)
	if err != nil {
		panic(err)
	}
	return raw
}

func (m *manyRegions) take(i int, raw []byte) {
	var row nusav1.LatencyRow
	if err := proto.Unmarshal(raw, &row); err != nil {
		panic(err)
	}
	m.a.latency(m.a.st.Regions[m.names[i]].Session, &row)
}

// columns sends each session its column, as far as the wire's bytes.
func (m *manyRegions) columns(b *testing.B) (size int) {
	for _, name := range m.names {
		s := m.a.st.Regions[name].Session
		m.a.st.mu.Lock()
		message := s.columnMessage()
		m.a.st.mu.Unlock()
		raw, err := proto.Marshal(message)
		if err != nil {
			b.Fatal(err)
		}
		size += len(raw)
	}
	return size
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func liveBytes() float64 {
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	return float64(mem.HeapAlloc) / 1e6
}

// BenchmarkIntake is five seconds of a federation in which every region has
// measured every other: a sixth of each row comes in (what is due for a refresh), each second a view is
// taken, and each column goes out. cores is processor time by those five
// seconds.
func BenchmarkIntake(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			before := liveBytes()
			m := newManyRegions(n)
			for i := range m.names {
				m.take(i, m.row(i, true, func(int) bool { return true }))
			}
			m.columns(b)
			rows := make([][]byte, n)
			for i := range rows {
				rows[i] = m.row(i, false, func(j int) bool { return (i+j)%6 == 0 })
			}
			var in, views, out time.Duration
			size := 0
			for b.Loop() {
				step := func(sum *time.Duration, do func()) {
					began := processorTime()
					do()
					*sum += processorTime() - began
				}
				for second := range 5 {
					m.now += time.Second
					step(&in, func() {
						for i := second; i < n; i += 5 {
							m.take(i, rows[i])
						}
					})
					step(&views, func() {
						m.a.st.mu.Lock()
						m.a.st.topologyView()
						m.a.st.mu.Unlock()
					})
				}
				step(&out, func() { m.a.tick(); size = m.columns(b) })
			}
			rounds := 5 * float64(b.N)
			b.ReportMetric((in+views).Seconds()/rounds, "cores-in")
			b.ReportMetric(views.Seconds()/rounds, "cores-views")
			b.ReportMetric(out.Seconds()/rounds, "cores-columns")
			b.ReportMetric(float64(size)/5e6, "MB/s-columns")
			runtime.KeepAlive(rows)
			rows = nil
			b.ReportMetric(liveBytes()-before, "MB-live")
			runtime.KeepAlive(m)
		})
	}
}

// BenchmarkQuestions are what a matrix of 1,000 regions, a third of it measured,
// costs those who ask.
func BenchmarkQuestions(b *testing.B) {
	const n = 1000
	m := newManyRegions(n)
	for i := range m.names {
		m.take(i, m.row(i, true, func(j int) bool { return (i*7+j*13)%31 == 0 }))
	}
	view := func() *topology.View {
		m.now += 2 * viewAge
		m.a.st.mu.Lock()
		defer m.a.st.mu.Unlock()
		return m.a.st.topologyView()
	}
	v := view()
	b.Run("predict", func(b *testing.B) {
		for b.Loop() {
			m.a.st.predict(predict.NewTable(v, 1))
		}
	})
	b.Run("outdated", func(b *testing.B) {
		table := predict.NewTable(v, 1)
		for b.Loop() {
			table.Outdated(v)
		}
	})
	b.Run("router", func(b *testing.B) {
		for b.Loop() {
			topology.NewRouter(view(), 50)
		}
	})
	b.Run("board", func(b *testing.B) {
		board := topology.NewChangeLog(view())
		for b.Loop() {
			board.Update(view())
		}
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			topology.Check(view(), topology.CheckOptions{})
		}
	})
}

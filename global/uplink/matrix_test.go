package uplink

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/latency"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/predict"
)

// manyRegions are n regions on a plane, each with a session without a stream, and
// a virtual clock.
type manyRegions struct {
	s     *Server
	names []string
	x, y  []float64
	now   time.Duration
	r     *rand.Rand
}

func newManyRegions(t testing.TB, n int) *manyRegions {
	m := &manyRegions{r: rand.New(rand.NewPCG(1, 2))}
	for i := range n {
		m.names = append(m.names, fmt.Sprintf("region-%04d", i))
		m.x, m.y = append(m.x, 200*m.r.Float64()), append(m.y, 200*m.r.Float64())
	}
	m.s = newServer(t, func() time.Duration { return m.now }, m.names...)
	return m
}

// row returns the measurements of a region to the peers for which measured returns
// true.
func (m *manyRegions) row(i int, full bool, measured func(j int) bool) []byte {
	out := &nusav1.LatencyRow{Full: full}
	for j := range m.names {
		if i == j || !measured(j) {
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

func (m *manyRegions) setRow(i int, raw []byte) {
	var row nusav1.LatencyRow
	if err := proto.Unmarshal(raw, &row); err != nil {
		panic(err)
	}
	m.s.setRow(m.s.live[m.names[i]], &row)
}

// columns encodes the column of each session and returns the bytes.
func (m *manyRegions) columns(b *testing.B) (size int) {
	for _, name := range m.names {
		m.s.st.Lock()
		message := m.s.live[name].columnMessage()
		m.s.st.Unlock()
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

// BenchmarkIntake measures five seconds of a federation in which every region has measured every
// other one. A sixth of each row arrives (the part that is due for a refresh), each second a view
// is made, and each column is sent. cores is the processor time divided by those five seconds.
func BenchmarkIntake(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			before := liveBytes()
			m := newManyRegions(b, n)
			for i := range m.names {
				m.setRow(i, m.row(i, true, func(int) bool { return true }))
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
							m.setRow(i, rows[i])
						}
					})
					step(&views, func() {
						m.s.st.Lock()
						m.s.st.TopologyView()
						m.s.st.Unlock()
					})
				}
				step(&out, func() { m.s.Tick(); size = m.columns(b) })
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

// BenchmarkQuestions measures queries of a matrix of 1,000 regions in which a third
// of the pairs is measured.
func BenchmarkQuestions(b *testing.B) {
	const n = 1000
	m := newManyRegions(b, n)
	for i := range m.names {
		m.setRow(i, m.row(i, true, func(j int) bool { return (i*7+j*13)%31 == 0 }))
	}
	view := func() *topology.View {
		m.now += 2 * latency.MaxViewAge
		m.s.st.Lock()
		defer m.s.st.Unlock()
		return m.s.st.TopologyView()
	}
	v := view()
	b.Run("predict", func(b *testing.B) {
		for b.Loop() {
			m.s.st.Latency.SetPredictor(predict.NewTable(v, 1))
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
	b.Run("changelog", func(b *testing.B) {
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

// TestMatrixChangesAreEncodedOnce: sessions that have the same version of the matrix get the same
// encoded message.
func TestMatrixChangesAreEncodedOnce(t *testing.T) {
	m := newManyRegions(t, 6)
	for _, c := range m.s.live {
		c.known = &nusav1.KnownSets{}
	}
	send := func() (messages map[*nusav1.GlobalMessage]int) {
		m.now += matrixInterval
		for i := range m.names {
			m.setRow(i, m.row(i, true, func(int) bool { return true }))
		}
		m.s.SendMatrix()
		messages = map[*nusav1.GlobalMessage]int{}
		for _, c := range m.s.live {
			messages[c.matrix]++
			c.matrix = nil
		}
		return messages
	}
	for range len(m.names) { // a few sessions at a time get the whole matrix
		send()
	}
	m.x[0] += 300
	send()
	for _, c := range m.s.live {
		if c.matrixVersion != m.s.matrix.Version || c.matrixVersion < 2 {
			t.Fatalf("%s has version %d of the matrix, not %d", c.region, c.matrixVersion, m.s.matrix.Version)
		}
	}
	m.s.live[m.names[0]].matrixVersion-- // this session was slow
	m.x[1] += 300
	if got := send(); len(got) != 2 || got[nil] > 0 {
		t.Errorf("sessions with two versions get %d messages", len(got))
	}
	for _, c := range m.s.live {
		if c.matrixVersion != m.s.matrix.Version {
			t.Errorf("%s has version %d of the matrix, not %d", c.region, c.matrixVersion, m.s.matrix.Version)
		}
	}
}

// TestWholeMatricesAreBounded: when a matrix is larger than what a tick may send, it is sent more
// rarely than each tick.
func TestWholeMatricesAreBounded(t *testing.T) {
	const regions, ticks = 300, 40
	m := newManyRegions(t, regions)
	m.now = time.Second
	for i := range m.names {
		m.setRow(i, m.row(i, true, func(int) bool { return true }))
	}
	for _, c := range m.s.live {
		c.known = &nusav1.KnownSets{}
	}
	sent, size := 0, 0
	for range ticks {
		m.now += 5 * time.Second
		m.s.SendMatrix()
		for _, c := range m.s.live {
			if whole := c.matrix.GetMatrixChanges(); whole.GetFull() {
				size = len(whole.GetValues())
				sent += size
			}
			c.matrix = nil
		}
	}
	if size <= regions*matrixBytes || sent < ticks*regions*matrixBytes/2 || sent > ticks*regions*matrixBytes {
		t.Errorf("matrices of %d bytes: %d bytes in %d ticks, at most %d", size, sent, ticks, ticks*regions*matrixBytes)
	}
}

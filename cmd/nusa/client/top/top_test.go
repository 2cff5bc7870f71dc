package top

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// in is the time on the server after a span. Its clock is 10 s ahead.
func in(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(sample.Noon.Add(10*time.Second + d))
}

// snapshot is the state of three regions.
func snapshot() *nusav1.OverviewUpdate {
	size := func(cpu, memory int64) *nusav1.Resources {
		return &nusav1.Resources{CpuMilli: cpu, MemoryBytes: memory << 30}
	}
	return &nusav1.OverviewUpdate{
		Reset_: true, Synced: true,
		Head: &nusav1.OverviewHead{Now: in(0), Info: &nusav1.InfoResponse{Role: "global", Name: "g1", Leader: true, Alarms: []string{"failover is paused: 3 regions fell silent: nusa server list"}}},
		Regions: []*nusav1.OverviewRegion{
			{Name: "jakarta", State: nusav1.RegionState_REGION_STATE_CONNECTED, NodesReady: 10, NodesLost: 1, Capacity: size(40000, 64), Allocated: size(10000, 32),
				Utilisation: &nusav1.Utilisation{Cpu: 0.97, Memory: 0.5, Disk: 0.81, NetworkIn: 2e6, NetworkOut: 5e5}, Allocations: map[string]int32{"running": 7, "failed": 2}, QueueLength: 3, Master: "jakarta-1"},
			{Name: "seoul", State: nusav1.RegionState_REGION_STATE_DISCONNECTED, LastSeen: in(-50 * time.Second), MoveAt: in(250 * time.Second), Message: "silent", Capacity: size(8000, 16)},
			{Name: "tokyo", State: nusav1.RegionState_REGION_STATE_CONNECTED, Draining: true, NodesReady: 2, Capacity: size(8000, 16), Allocated: size(8000, 1), Utilisation: &nusav1.Utilisation{Cpu: 0.1, Memory: 0.9}, Master: "tokyo-2"},
		},
		JobCounts: &nusav1.OverviewJobCounts{Total: 5, States: map[string]int32{"JOB_STATE_RUNNING": 4, "JOB_STATE_PENDING": 1}},
		Due:       &nusav1.OverviewDueList{Due: []*nusav1.OverviewDue{{Kind: "region_move", Subject: "seoul", At: in(250 * time.Second), Message: "12 instances may move to other regions"}}},
		Errors:    &nusav1.OverviewErrors{Errors: []*nusav1.PartialError{{Region: "osaka", Message: "no answer within 5s"}}},
	}
}

func shown(updates ...*nusav1.OverviewUpdate) *page {
	p := &page{}
	for _, u := range updates {
		p.apply(u, sample.Noon)
	}
	return p
}

// TestRendering shows the page from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	t.Setenv("TZ", "UTC")
	island := &nusav1.OverviewUpdate{Head: &nusav1.OverviewHead{Alone: durationpb.New(3 * time.Minute), Info: &nusav1.InfoResponse{Role: "regional", Name: "jakarta-1", Region: "jakarta"}}}
	many := snapshot()
	for i := range 20 {
		many.Regions = append(many.Regions, &nusav1.OverviewRegion{Name: fmt.Sprintf("region-%02d", i), State: nusav1.RegionState_REGION_STATE_CONNECTED})
		many.Due.Due = append(many.Due.Due, many.Due.Due[0])
	}
	in80 := func(p *page, height int) func(w *term.Screen) {
		return func(w *term.Screen) { w.Width = 80; p.write(w, height) }
	}
	sorted := shown(snapshot())
	sorted.order, sorted.reverse = 1, true
	scrolled := shown(many)
	scrolled.from = 1000
	noticed := shown(snapshot(), island)
	noticed.notice = "the connection to g1:7600 was lost: it continues when the server is back"
	sample.Render(t, []sample.Rendering{
		sample.Of("top in a pipe", func(w *term.Screen) { shown(snapshot()).write(w, 0) }),
		sample.Of("top in 80 columns, by state, reversed", in80(sorted, 24)),
		sample.Of("top, many regions, scrolled", in80(scrolled, 20)),
		sample.Of("top at an island, not current", in80(noticed, 24)),
		sample.Of("top of nothing", in80(shown(&nusav1.OverviewUpdate{Reset_: true, Synced: true, Head: &nusav1.OverviewHead{Servers: []*nusav1.GlobalServer{{Name: "g1"}}}}), 24)),
		sample.Of("top of a user who may read no region", in80(shown(&nusav1.OverviewUpdate{Reset_: true, Synced: true}), 24)),
		sample.Of("top in a tiny window", in80(shown(snapshot()), 3)),
	})
}

// TestOrders: each order puts the right region first, and the keys choose them.
func TestOrders(t *testing.T) {
	l := &liveView{p: shown(snapshot())}
	for _, want := range []string{"jakarta", "seoul", "jakarta", "tokyo", "tokyo", "jakarta", "jakarta", "jakarta", "jakarta"} {
		if got := l.p.sorted()[0].GetName(); got != want {
			t.Errorf("by %s: %s is first, want %s", orders[l.p.order], got, want)
		}
		l.key('s')
	}
	l.key('S')
	l.key('r')
	if got := l.p.sorted()[0].GetName(); l.p.order != 0 || got != "tokyo" {
		t.Errorf("by %s, reversed: %s is first", orders[l.p.order], got)
	}
}

// TestKeys: keys of several bytes scroll, within the table, and only some keys end.
func TestKeys(t *testing.T) {
	l := &liveView{p: &page{lines: 30, room: 10}}
	for _, c := range []struct {
		keys string
		from int
		end  bool
	}{
		{"jjj", 3, false}, {"k", 2, false}, {"\x1b[B\x1bOB", 4, false}, {"\x1b[6~", 14, false}, {"\x1b[6~", 20, false}, {"\x1b[A", 19, false},
		{"\x1b[5~\x1b[5~", 0, false}, {"\x1b[Cx\x00", 0, false}, {"\x1bj", 1, false}, {"\x1bq", 1, true}, {"q", 1, true}, {"\x03", 1, true},
	} {
		end := false
		for _, b := range []byte(c.keys) {
			end = l.key(b)
		}
		if end != c.end || l.p.from != c.from {
			t.Errorf("%q: from %d, end %v", c.keys, l.p.from, end)
		}
	}
}

// terminal counts what is written to it.
type terminal struct {
	mu     sync.Mutex
	writes int
	text   strings.Builder
}

func (w *terminal) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes++
	return w.text.Write(p)
}

// since returns the number of writes, and their text, since the previous call.
func (w *terminal) since() (writes int, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	writes, text = w.writes, w.text.String()
	w.writes = 0
	w.text.Reset()
	return writes, text
}

// overviews serves the updates of a channel, until an error ends the stream.
type overviews struct {
	nusav1.UnimplementedOverviewServer
	updates chan *nusav1.OverviewUpdate
	refuse  chan error
}

func (o *overviews) Watch(_ *nusav1.WatchOverviewRequest, s grpc.ServerStreamingServer[nusav1.OverviewUpdate]) error {
	for {
		select {
		case u := <-o.updates:
			if err := s.Send(u); err != nil {
				return err
			}
		case err := <-o.refuse:
			return err
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// lists is the service with which the client finds out whether a server serves again.
type lists struct {
	nusav1.UnimplementedRegionsServer
}

func (lists) List(context.Context, *nusav1.ListRegionsRequest) (*nusav1.ListRegionsResponse, error) {
	return &nusav1.ListRegionsResponse{}, nil
}

// begin shows the state of a server on a terminal in memory.
func begin(t *testing.T) (o *overviews, out *terminal, keys chan byte, ended chan error) {
	t.Helper()
	o, out, keys, ended = &overviews{updates: make(chan *nusav1.OverviewUpdate), refuse: make(chan error)}, &terminal{}, make(chan byte), make(chan error, 1)
	listener := bufconn.Listen(1 << 20)
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	nusav1.RegisterOverviewServer(s, o)
	nusav1.RegisterRegionsServer(s, lists{})
	go func() { _ = s.Serve(listener) }() // it ends with Stop
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		s.Stop()
	})
	c := &cli.Session{Settings: &cli.Settings{Addr: "g1:7600", Output: "table", Timeout: time.Minute}, Cmd: &cobra.Command{}, Ctx: t.Context(), Conn: conn, Out: out, Terminal: true}
	l := &liveView{c: c, p: &page{}, keys: keys, height: func() int { return 24 }}
	go func() { ended <- l.run() }()
	return o, out, keys, ended
}

// TestLive: the terminal shows the state soon after a change, is drawn a bounded number of times, says when
// the state is not current, and shows afterwards what it showed before.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, out, keys, ended := begin(t)
		o.updates <- snapshot()
		time.Sleep(time.Second)
		if n, text := out.since(); n < 1 || n > 11 || !strings.HasPrefix(text, enterScreen) || !strings.Contains(text, "jakarta") || strings.Count(text, "\n") > 24*n {
			t.Errorf("%d drawings: %q", n, text)
		}
		for i := range 500 {
			o.updates <- &nusav1.OverviewUpdate{Synced: true, Regions: []*nusav1.OverviewRegion{{Name: "tokyo", QueueLength: int32(i)}}}
			time.Sleep(4 * time.Millisecond)
		}
		time.Sleep(frame)
		if n, text := out.since(); n < 10 || n > 22 || !strings.Contains(text, "499") {
			t.Errorf("%d drawings in 2 s of changes: %q", n, text)
		}
		time.Sleep(time.Minute)
		if n, _ := out.since(); n < 55 || n > 65 {
			t.Errorf("%d drawings in a quiet minute", n)
		}
		o.refuse <- status.Error(codes.Unavailable, "the server restarts")
		time.Sleep(200 * time.Millisecond)
		if _, text := out.since(); !strings.Contains(text, "not current: the server restarts") {
			t.Errorf("after a break: %q", text)
		}
		o.updates <- snapshot()
		time.Sleep(time.Second)
		if _, text := out.since(); strings.Contains(text[strings.LastIndex(text, toTop):], "not current") {
			t.Errorf("after the return: %q", text)
		}
		keys <- 'q'
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, text := out.since(); !strings.HasSuffix(text, leaveScreen) {
			t.Errorf("at the end: %q", text)
		}
	})
}

// TestRefused: a server that refuses ends the command, and the terminal stays as it was.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, out, _, ended := begin(t)
		o.refuse <- status.Error(codes.PermissionDenied, "no")
		if err := <-ended; status.Code(err) != codes.PermissionDenied {
			t.Error(err)
		}
		if n, text := out.since(); n != 0 {
			t.Errorf("the terminal got %q", text)
		}
	})
}

package global

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// TestARefusedRegionIsShown: a refusal is an alarm with both numbers and what to do. The alarm
// lasts until a session begins, and the log has one line however often the region tries. A second
// stream beside the region's own may be refused too: that is no refusal of the region.
func TestARefusedRegionIsShown(t *testing.T) {
	log := &lines{}
	s := newFederation().start(t, "g1", func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	hello := func(term, index uint64) *nusav1.RegionHello {
		h := helloOf("alpha", term)
		h.AppliedIndex = index
		return h
	}
	refused := func(h *nusav1.RegionHello) {
		t.Helper()
		r := s.join(h)
		r.wait("refusal", func() bool { return r.refused != nil })
		r.leave()
	}
	look := func() (note string, alarms []string) {
		t.Helper()
		got, err := nusav1.NewRegionsClient(s.conn).Get(t.Context(), &nusav1.GetRegionRequest{Name: "alpha"})
		if err != nil {
			t.Fatal(err)
		}
		info, err := nusav1.NewSystemClient(s.conn).Info(t.Context(), &nusav1.InfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetFailoverMessage(), info.GetAlarms()
	}
	waitInfo(t, s, "active without an alarm: the history is read", func(i *nusav1.InfoResponse) bool { return i.GetLeader() && len(i.GetAlarms()) == 0 })
	first := s.join(hello(2, 70))
	first.wait("welcome", func() bool { return first.welcome != nil })
	refused(hello(1, 71))
	if note, alarms := look(); strings.Contains(note, "refused") || len(alarms) > 0 {
		t.Errorf("with a session: %q, %q", note, alarms)
	}
	first.leave()
	s.waitRegion("alpha", nusav1.RegionState_REGION_STATE_DISCONNECTED)
	for i := range uint64(3) {
		refused(hello(2, 60+i))
		note, alarms := look()
		for _, text := range append(alarms, note) {
			for _, want := range []string{"refused: region alpha", "index 6", "index 70", "nusa regional restore"} {
				if len(alarms) != 1 || !strings.Contains(text, want) {
					t.Errorf("%q, %q: want %q", note, alarms, want)
				}
			}
		}
	}
	if n := log.count("a region is refused"); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
	refused(hello(1, 71))
	if note, alarms := look(); !strings.Contains(note, "later master") || len(alarms) != 1 || log.count("a region is refused") != 2 {
		t.Errorf("another reason: %q, %q", note, alarms)
	}
	again := s.join(hello(2, 70))
	again.wait("welcome", func() bool { return again.welcome != nil })
	if note, alarms := look(); strings.Contains(note, "refused") || len(alarms) > 0 {
		t.Errorf("with a session again: %q, %q", note, alarms)
	}
}

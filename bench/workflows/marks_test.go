package workflows

import (
	"testing"
	"time"
)

// TestMarks: the time from the last message about the end of a step to the first offer of the step after it
// counts, and a run has ended once all its steps have.
func TestMarks(t *testing.T) {
	m := newMarks(4, 2, 1)
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	m.noteOffered("w.1--s00000", at(1))
	m.noteOffered("w.1--s00001", at(1))
	m.noteEnded("w.1--s00000", at(2))
	m.noteEnded("w.1--s00000", at(5))
	m.noteOffered("w.1--s00002", at(8))
	m.noteOffered("w.1--s00002", at(9))
	m.noteEnded("w.1--s00000", at(20)) // repeated after the offer
	m.noteEnded("w.1--s00001", at(30))
	m.noteOffered("w.1--s00003", at(34))
	m.noteEnded("w.1--s00002", at(40))
	if len(m.ended) != 0 {
		t.Error("the run ended too early")
	}
	m.noteEnded("w.1--s00003", at(41))
	if len(m.ended) != 1 || m.offered != 4 {
		t.Errorf("%d runs have ended, %d steps were offered", len(m.ended), m.offered)
	}
	if len(m.latencies) != 2 || m.latencies[0] != 3*time.Millisecond || m.latencies[1] != 4*time.Millisecond {
		t.Errorf("latencies %v", m.latencies)
	}
	for _, name := range []string{"w.1", "w.1--clean", "w.1--s99999"} {
		m.noteOffered(name, at(1))
	}
	if m.offered != 4 {
		t.Error("a job that is no step of the measurement counts")
	}
}

func TestOptions(t *testing.T) {
	good := Options{Regions: 1, Workflows: 1, Steps: 1, Width: 1, Concurrency: 1, Timeout: time.Second}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.Regions = 0 }, func(o *Options) { o.Steps = 10_001 }, func(o *Options) { o.Width = 0 },
		func(o *Options) { o.Concurrency = 0 }, func(o *Options) { o.Workflows = 0 }, func(o *Options) { o.Timeout = 0 },
	} {
		o := good
		change(&o)
		if o.Validate() == nil {
			t.Errorf("accepted: %+v", o)
		}
	}
}

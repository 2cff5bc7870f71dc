package region_test

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
)

// TestNewIncarnationIsWelcomeOnceItsRecordIsStored: the restore command restored a log from an old
// copy, so the log knows an earlier revision. The record of the new incarnation is stored before
// the welcome. The welcome must not compare the log with the old incarnation.
func TestNewIncarnationIsWelcomeOnceItsRecordIsStored(t *testing.T) {
	c := region.Config{Lease: 15 * time.Second, ActiveUntil: time.Hour, Federation: "f", Revision: 60, Term: region.Term{Number: 1, Nonce: "n"}}
	hello := func(stream, incarnation uint64, known int64) region.Hello {
		return region.Hello{Stream: stream, ClusterID: "c", Incarnation: incarnation, Term: stream, AppliedIndex: 50, Level: 1,
			Federation: "f", KnownTerm: c.Term, KnownRevision: known, Required: 1, Acked: 1}
	}
	s := region.Open(c, region.Record{Name: "sea"}, 0)
	s, _ = region.Step(c, s, time.Second, hello(1, 1, 54))
	s, _ = region.Step(c, s, time.Second, region.Received{Stream: 1})
	s, _ = region.Step(c, s, 2*time.Second, region.StreamEnded{Stream: 1})
	restored := hello(2, 2, 32)
	first, _ := region.Step(c, s, 3*time.Second, restored)
	s.Record = first.Record // stored, before the welcome
	if _, effects := region.Step(c, s, 3*time.Second, restored); len(effects) == 0 || effects[len(effects)-1].Kind != region.Welcome {
		t.Errorf("after a restore: %v", effects)
	}
	if _, effects := region.Step(c, s, 3*time.Second, hello(3, 1, 32)); effects[0].Kind != region.Refuse {
		t.Errorf("the old incarnation: %v", effects)
	}
}

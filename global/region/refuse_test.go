package region

import (
	"strings"
	"testing"
	"time"
)

// TestRefusedHellos: each reason alone refuses a hello that would otherwise be welcome. A permanent
// refusal needs an operator. No refusal changes what the server knows of the region.
func TestRefusedHellos(t *testing.T) {
	config := Config{Lease: 15 * time.Second, ActiveUntil: time.Hour, Federation: "f", Term: Term{7, "n"}, Revision: 100, Terms: []Beginning{
		{Term: Term{4, "d"}, Earlier: 30}, {Term: Term{5, "e"}, Earlier: 50}, {Term: Term{7, "n"}, Earlier: 90},
	}}
	record := Record{Name: "sea", ClusterID: "c", Incarnation: 3, RestoreID: "r", Term: 5, AppliedIndex: 40}
	welcome := Hello{
		Stream: 2, ClusterID: "c", Incarnation: 3, RestoreID: "r", Term: 5, AppliedIndex: 40, Level: 1, Required: 1, Federation: "f",
		KnownTerm: Term{7, "n"}, KnownRevision: 95,
	}
	for _, c := range []struct {
		says      string
		permanent bool
		change    func(*Config, *Record, *Hello)
	}{
		{"", false, func(*Config, *Record, *Hello) {}},
		{"may not be the active one", false, func(c *Config, _ *Record, _ *Hello) { c.ActiveUntil = time.Second }},
		{"the store was recovered", false, func(c *Config, _ *Record, _ *Hello) { c.ServesFrom = time.Hour }},
		{"no cluster id was given", true, func(_ *Config, _ *Record, h *Hello) { h.ClusterID = "" }},
		{"run `nusa region lose sea`", true, func(_ *Config, _ *Record, h *Hello) { h.ClusterID = "d" }},
		{"", false, func(_ *Config, r *Record, h *Hello) { h.ClusterID, r.Lost, r.NothingRuns = "d", true, true }},
		{"is region tok already", true, func(_ *Config, _ *Record, h *Hello) { h.BoundName = "tok" }},
		{"belongs to federation g", true, func(_ *Config, _ *Record, h *Hello) { h.Federation = "g" }},
		{"", false, func(_ *Config, _ *Record, h *Hello) { h.Federation, h.KnownRevision = "", 0 }},
		{"knows revision 101, the store has 100", false, func(_ *Config, _ *Record, h *Hello) { h.KnownRevision = 101 }},
		{"of leadership term 6, but that term wrote no revision after 90", false, func(_ *Config, _ *Record, h *Hello) { h.KnownTerm.Number = 6 }},
		{"of leadership term 4, but that term wrote no revision after 50", false, func(_ *Config, _ *Record, h *Hello) {
			h.KnownTerm, h.KnownRevision = Term{4, "d"}, 51 // term 5 has written that revision
		}},
		{"", false, func(_ *Config, _ *Record, h *Hello) { h.KnownTerm, h.KnownRevision = Term{4, "d"}, 50 }},
		{"another leadership term 5 (x, here e)", false, func(_ *Config, _ *Record, h *Hello) {
			h.KnownTerm, h.KnownRevision = Term{5, "x"}, 80
		}},
		{"", false, func(_ *Config, _ *Record, h *Hello) { h.KnownTerm, h.KnownRevision = Term{5, "x"}, 30 }},
		{"knows leadership term 8, the store has 7", false, func(_ *Config, _ *Record, h *Hello) { h.KnownTerm.Number = 8 }},
		{"another leadership term 7 (x, here n)", false, func(_ *Config, _ *Record, h *Hello) { h.KnownTerm.Nonce = "x" }},
		{"before an operator runs `nusa server recover`", false, func(c *Config, _ *Record, _ *Hello) { c.Conflict = true }},
		{"has not reported the length of its log", false, func(c *Config, _ *Record, _ *Hello) { c.LogUnknown = true }},
		{"run `nusa region lose sea`", false, func(c *Config, _ *Record, h *Hello) { c.LogUnknown, h.ClusterID = true, "d" }},
		{"belongs to federation g", false, func(c *Config, _ *Record, h *Hello) { c.LogUnknown, h.Federation = true, "g" }},
		{"nusa regional restore --incarnation 4", true, func(_ *Config, _ *Record, h *Hello) { h.Incarnation = 2 }},
		{"another restored log began incarnation 3", true, func(_ *Config, _ *Record, h *Hello) { h.RestoreID = "s" }},
		{"", false, func(_ *Config, _ *Record, h *Hello) {
			h.Incarnation, h.RestoreID, h.Term, h.AppliedIndex = 4, "s", 1, 1
		}},
		{"term 4 is older than 5", false, func(_ *Config, _ *Record, h *Hello) { h.Term = 4 }},
		{"ends at index 39, but index 40 was known", true, func(_ *Config, _ *Record, h *Hello) { h.AppliedIndex = 39 }},
	} {
		config, record, h := config, record, welcome
		c.change(&config, &record, &h)
		s := Open(config, record, 0)
		next, effects := Step(config, s, 10*time.Second, h)
		if c.says == "" {
			if !next.Connected() {
				t.Errorf("%+v is refused: %v", h, effects)
			}
			continue
		}
		if next != s {
			t.Errorf("%q changes the state", c.says)
		}
		if last := effects[len(effects)-1]; last.Kind != Refuse || last.Permanent != c.permanent || !strings.Contains(last.Message, c.says) {
			t.Errorf("%v, want %q, permanent %t", effects, c.says, c.permanent)
		}
	}
}

// TestOldCopyOfAConnectedLog: an earlier session shows how long a log was. An older copy of that
// log is refused, also when the copy has grown since.
func TestOldCopyOfAConnectedLog(t *testing.T) {
	config := Config{Lease: 15 * time.Second, ActiveUntil: time.Hour, Federation: "f", Term: Term{7, "n"}, Revision: 100}
	hello := Hello{
		Stream: 1, ClusterID: "c", Incarnation: 3, Term: 5, AppliedIndex: 40, Level: 1, Required: 9, Acked: 8, Federation: "f",
		KnownTerm: Term{7, "n"}, KnownRevision: 95,
	}
	s, _ := Step(config, Open(config, Record{Name: "sea"}, 0), 0, hello)
	for now, e := range []Event{OrdersAcked{Stream: 1, Position: 9, Index: 44}, LeaseRequested{Stream: 1, ID: 1, Orders: 9, Index: 46}, StreamEnded{Stream: 1}} {
		s, _ = Step(config, s, time.Duration(now)*time.Second, e)
	}
	same := hello
	same.Stream, same.AppliedIndex, same.KnownRevision, same.Acked = 2, 46, 100, 9
	for says, change := range map[string]func(*Hello){
		"":                           func(*Hello) {},
		"index 46 was known before":  func(h *Hello) { h.AppliedIndex = 45 },
		"it had revision 100 before": func(h *Hello) { h.AppliedIndex, h.KnownRevision = 60, 99 },
		"the orders up to 8, but it had those up to 9 before": func(h *Hello) { h.AppliedIndex, h.Acked = 60, 8 },
	} {
		h := same
		change(&h)
		next, effects := Step(config, s, 4*time.Second, h)
		if says == "" && !next.Connected() || says != "" && (next.Connected() || !effects[0].Permanent || !strings.Contains(effects[0].Message, says)) {
			t.Errorf("%q: %v", says, effects)
		}
	}
}

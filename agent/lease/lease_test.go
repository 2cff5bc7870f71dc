package lease

import (
	"fmt"
	"testing"
	"time"
)

const s = time.Second

func TestLeasesDecideWhatMayRun(t *testing.T) {
	none, good, over, older := State{}, State{Held: true, Deadline: 11 * s, Left: s}, State{Held: true, Deadline: 10 * s}, State{Held: true, Deadline: 9 * s, Left: -s}
	for _, c := range []struct {
		name         string
		binding      Binding
		node, region State
		start, stop  bool
		reason       Reason
	}{
		{"none, no lease", None, none, none, true, false, ""},
		{"none, both expired", None, over, over, true, false, ""},
		{"node, no lease yet", Node, none, good, false, false, ReasonExpired},
		{"node, held", Node, good, over, true, false, ""},
		{"node, expired", Node, over, good, false, true, ReasonExpired},
		{"region, no lease yet", Region, good, none, false, false, ReasonRegion},
		{"region, held", Region, over, good, true, false, ""},
		{"region, expired", Region, good, over, false, true, ReasonRegion},
		{"both, no lease yet", Both, none, none, false, false, ReasonExpired},
		{"both, only the node's", Both, good, none, false, false, ReasonRegion},
		{"both, only the region's", Both, none, good, false, false, ReasonExpired},
		{"both, held", Both, good, good, true, false, ""},
		{"both, the node's expired", Both, over, good, false, true, ReasonExpired},
		{"both, the region's expired", Both, good, over, false, true, ReasonRegion},
		{"both expired, the region's first", Both, over, older, false, true, ReasonRegion},
		{"both expired, the node's first", Both, older, over, false, true, ReasonExpired},
		{"both, one expired, one not held", Both, none, over, false, true, ReasonRegion},
	} {
		v := Evaluate(c.binding, Leases{Node: c.node, Region: c.region})
		if v.MayStart != c.start || v.MustStop != c.stop || v.Reason != c.reason || (v.Message() == "") != c.start {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
}

// TestEarlierLeaseCounts: if two leases bind a run, the run ends with the lease that ends
// first.
func TestEarlierLeaseCounts(t *testing.T) {
	var h Holder
	if _, ok := h.Deadline(Both, 0); ok {
		t.Error("a deadline without a lease")
	}
	id := h.Request(10 * s)
	if !h.Granted(Grant{ID: id, Node: 15 * s, Region: 6 * s}, 0) {
		t.Fatal("not granted")
	}
	for b, want := range map[Binding]time.Duration{None: 0, Node: 25 * s, Region: 16 * s, Both: 16 * s} {
		if d, ok := h.Deadline(b, 12*s); !ok || d.At != want {
			t.Errorf("%s: %v, %t, want %s", b, d, ok, want)
		}
	}
	// The region lost its lease. A time that was granted earlier stays valid.
	id = h.Request(13 * s)
	if !h.Granted(Grant{ID: id, Node: 15 * s, Region: 0}, 0) {
		t.Fatal("not granted")
	}
	if l := h.At(13 * s); l.Node.Deadline != 28*s || l.Region.Deadline != 16*s {
		t.Errorf("%+v", l)
	}
	// A smaller remainder does not move a deadline to an earlier time.
	id = h.Request(13 * s)
	if !h.Granted(Grant{ID: id, Node: 0, Region: s}, 0) || h.At(13*s).Region.Deadline != 16*s {
		t.Errorf("%+v", h.At(13*s))
	}
	if _, ok := h.Deadline(Both, 16*s); ok {
		t.Error("a deadline after the end of the region's lease")
	}
	// The grant refuses the node's lease but not the region's lease.
	id = h.Request(17 * s)
	if !h.Granted(Grant{ID: id, Node: 0, Region: 9 * s}, 0) || h.At(17*s).Node.Deadline != 28*s || h.At(17*s).Region.Deadline != 26*s {
		t.Errorf("%+v", h.At(17*s))
	}
	id = h.Request(18 * s)
	if h.Granted(Grant{ID: id, Node: 0, Region: 0}, 0) {
		t.Error("a grant of nothing")
	}
}

func TestRenewalFollowsTheShorterLease(t *testing.T) {
	var h Holder
	if got := h.Renewal(0, 5*s, true); got != 5*s {
		t.Errorf("before the first grant %s", got)
	}
	for _, c := range []struct{ node, region, alone, both time.Duration }{
		{15 * s, 0, 5 * s, 5 * s},
		{15 * s, 9 * s, 5 * s, 3 * s},
		{15 * s, 60 * s, 5 * s, 5 * s},
		{15 * s, 30 * time.Millisecond, 5 * s, 500 * time.Millisecond},
		{15 * s, 0, 5 * s, 5 * s}, // the region's lease has ended, so the agent does not ask all the time
		{300 * time.Millisecond, 15 * s, 100 * time.Millisecond, 100 * time.Millisecond},
	} {
		h.Granted(Grant{ID: h.Request(s), Node: c.node, Region: c.region}, 0)
		if alone, both := h.Renewal(s, time.Hour, false), h.Renewal(s, time.Hour, true); alone != c.alone || both != c.both {
			t.Errorf("node %s, region %s: %s and %s, want %s and %s", c.node, c.region, alone, both, c.alone, c.both)
		}
	}
}

// TestGrantBringsTheNextRequestForward: the region has a lease again, and the master adds
// it to a repeated old grant. The lease counts from the old request, so the agent must send
// its next request in time.
func TestGrantBringsTheNextRequestForward(t *testing.T) {
	var h Holder
	id := h.Request(10 * s)
	h.Granted(Grant{ID: id, Node: 60 * s, Region: 0}, 0)
	if got := h.Renewal(10*s, 0, true); got != 20*s {
		t.Errorf("without the region's lease after %s", got)
	}
	h.Granted(Grant{ID: id, Node: 60 * s, Region: 15 * s}, 0)
	for now, want := range map[time.Duration]time.Duration{12 * s: 3 * s, 15 * s: 0, 29 * s: 0} {
		if got := h.Renewal(now, 0, true); got != want {
			t.Errorf("at %s after %s, want %s", now, got, want)
		}
	}
	h.Request(29 * s)
	if got := h.Renewal(29*s, 0, true); got != 5*s {
		t.Errorf("after the request %s", got)
	}
}

// TestRequestNumbersGrow: the numbers of requests grow, also after a restart of the agent and
// while the clock stands still.
func TestRequestNumbersGrow(t *testing.T) {
	var last uint64
	for life := range 3 {
		var h Holder
		for range 3 {
			d, _ := h.Deadline(Node, time.Duration(life+1)*s)
			if d.Number <= last {
				t.Errorf("number %d after %d", d.Number, last)
			}
			last = d.Number
		}
	}
}

// TestLeasesOfAnEarlierIncarnationDoNotCount: orders of a restored log start nothing under
// leases that were granted before the restore.
func TestLeasesOfAnEarlierIncarnationDoNotCount(t *testing.T) {
	var h Holder
	h.Granted(Grant{ID: h.Request(10 * s), Node: 15 * s, Region: 15 * s}, 0)
	late := h.Request(11 * s)
	before, _ := h.Deadline(Both, 12*s)
	h.Forget()
	if h.Granted(Grant{ID: late, Node: 15 * s, Region: 15 * s}, 0) {
		t.Error("the answer of the earlier master counts")
	}
	for _, b := range Bindings {
		if v := Evaluate(b, h.At(12*s)); v.MayStart || v.MustStop {
			t.Errorf("%s: %+v, want no start, and no stop before the supervisor's deadline", b, v)
		}
	}
	if !h.Granted(Grant{ID: h.Request(13 * s), Node: 15 * s, Region: 15 * s}, 0) {
		t.Fatal("not granted")
	}
	if d, ok := h.Deadline(Both, 13*s); !ok || d.At != 28*s || d.Number <= before.Number {
		t.Errorf("%+v, %t after %+v", d, ok, before)
	}
}

// TestNewSessionStartsNothingBeforeItsGrants: the master of a session may have an old copy
// of the log. Its orders start nothing under the lease of an earlier session, but running
// tasks continue.
func TestNewSessionStartsNothingBeforeItsGrants(t *testing.T) {
	var h Holder
	h.Granted(Grant{ID: h.Request(0), Node: 15 * s, Region: 15 * s}, 0)
	check := func(what string, now time.Duration, want string) {
		t.Helper()
		got := ""
		for _, b := range Bindings {
			v := Evaluate(b, h.At(now))
			got += fmt.Sprintf("%s %v %v %s,", b, v.MayStart, v.MustStop, v.Reason)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	const all, none = "node true false ,region true false ,both true false ,", "node false false lease_expired,region false false region_lease,both false false lease_expired,"
	check("granted", s, all)
	h.NewSession()
	check("a new session", 2*s, none)
	if !h.Granted(Grant{ID: h.Request(3 * s), Node: 15 * s, Region: 15 * s, Continue: true}, 3*s) || h.At(3*s).Node.Deadline != 18*s || h.At(3*s).Region.Deadline != 18*s {
		t.Errorf("continued: %+v", h.At(3*s))
	}
	check("continued", 4*s, none)
	h.Granted(Grant{ID: h.Request(5 * s), Node: 15 * s}, 5*s)
	check("the region holds no lease", 6*s, "node true false ,region false false region_lease,both false false region_lease,")
	h.Granted(Grant{ID: h.Request(7 * s), Node: 15 * s, Region: 15 * s}, 7*s)
	check("granted in the session", 8*s, all)
	id := h.Request(20 * s)
	if h.Granted(Grant{ID: id, Node: 15 * s, Region: 15 * s, Continue: true}, 22*s) {
		t.Errorf("a lease that has ended is continued: %+v", h.At(22*s))
	}
	check("ended", 22*s, "node false true lease_expired,region false true region_lease,both false true lease_expired,")
	var fresh Holder
	if fresh.Granted(Grant{ID: fresh.Request(0), Node: 15 * s, Continue: true}, 0) {
		t.Error("a lease begins that is only to continue")
	}
}

package attempts

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// TestTheCheckerAndTheRegionAgree compares the checker with package retry, for random policies and failures. Between two
// attempts the instance may move to another region, with what it has used.
func TestTheCheckerAndTheRegionAgree(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		p := policy(rnd)
		var j Checker
		k, at := Key{Job: "job", Group: "g"}, At{Region: "r0", Run: 1, Version: 1, Generation: 1}
		var record *retry.Record
		memory := p.MemoryBytes
		for failures := int32(1); ; failures++ {
			if wrong := j.Placed(k, at, p, memory, int64(failures)*int64(time.Hour)); wrong != "" {
				t.Fatalf("seed %d: the attempt after %d failures %s: %+v", seed, failures-1, wrong, p)
			}
			f := failure(rnd)
			var d retry.Decision
			d, record = retry.Decide(p, record, f, failures)
			l := j.Failed(k, at, p, Failure{Failure: f}, int64(failures)*int64(time.Hour))
			if l.Over != (d.Verdict != retry.Again) {
				t.Fatalf("seed %d: after %d failures, the last one %s, the region decides %+v, the checker says %v: %+v", seed, failures, f, d, l, p)
			}
			if l.Over {
				break
			}
			if (l.left != nil) != record.Leave {
				t.Fatalf("seed %d: after %s leave is %v: %+v", seed, f, record.Leave, p)
			}
			if rnd.IntN(2) == 0 {
				used := retry.UsedOf(record, failures, false)
				record, at = used.Record(p), At{Region: "r1", Run: 1, Version: 1, Generation: at.Generation + 1}
			}
			memory = max(p.MemoryBytes, record.MemoryBytes)
		}
		if wrong := j.Placed(k, at, p, memory, 0); wrong == "" {
			t.Fatalf("seed %d: another attempt is right: %+v", seed, p)
		}
	}
}

// TestWhatTheCheckerRefuses shows that each check of an attempt can fail.
func TestWhatTheCheckerRefuses(t *testing.T) {
	p := &retry.Policy{Attempts: 5, MemoryBytes: 100, Default: retry.Rule{Attempts: -1}, Rules: []retry.Rule{
		{Categories: []retry.Category{retry.OOM}, Attempts: -1, MemoryMilli: 2000, MemoryLimit: 150, OtherRegion: true}}}
	k, at := Key{Job: "job", Group: "g"}, At{Region: "r0", Run: 1, Version: 1, Generation: 1}
	other := At{Region: "r1", Run: 1, Version: 1, Generation: 2}
	for name, c := range map[string]struct {
		at     At
		memory int64
		now    time.Duration
		wrong  bool
	}{
		"elsewhere, with more memory":     {other, 150, time.Second, false},
		"with the memory of before":       {other, 100, time.Second, true},
		"with more than the limit":        {other, 200, time.Second, true},
		"in the same region":              {at, 150, time.Second, true},
		"in the same region, much later":  {at, 150, time.Minute, false},
		"in another version":              {At{Region: "r0", Run: 1, Version: 2, Generation: 1}, 100, time.Second, false},
		"in another version, with 150":    {At{Region: "r0", Run: 1, Version: 2, Generation: 1}, 150, time.Second, false},
		"in another version, with 151":    {At{Region: "r0", Run: 1, Version: 2, Generation: 1}, 151, time.Second, true},
		"in the next run, with 150 again": {At{Region: "r0", Run: 2, Version: 1, Generation: 3}, 150, time.Second, true},
	} {
		var j Checker
		j.Placed(k, at, p, 100, 0)
		j.Failed(k, at, p, Failure{Failure: retry.Failure{Category: retry.OOM}}, 0)
		if wrong := j.Placed(k, c.at, p, c.memory, int64(c.now)); (wrong != "") != c.wrong {
			t.Errorf("%s: %q", name, wrong)
		}
	}
}

func policy(rnd *rand.Rand) *retry.Policy {
	p := &retry.Policy{Attempts: int32(rnd.IntN(6)), MemoryBytes: 1000, Default: retry.Rule{Attempts: -1, From: time.Second}}
	for range rnd.IntN(5) {
		r := retry.Rule{Attempts: int32(rnd.IntN(4)) - 1, Fail: rnd.IntN(6) == 0, OtherRegion: rnd.IntN(3) == 0}
		if rnd.IntN(2) == 0 {
			r.Categories = []retry.Category{[]retry.Category{retry.App, retry.OOM, retry.NodeLost}[rnd.IntN(3)]}
		}
		if rnd.IntN(3) == 0 {
			r.ExitCodes = []int32{int32(1 + rnd.IntN(3)), 5}
		}
		if rnd.IntN(5) == 0 {
			r.Signals = []int32{9}
		}
		if rnd.IntN(2) == 0 {
			r.MemoryMilli, r.MemoryLimit = int64(1001+rnd.IntN(2000)), int64(900+rnd.IntN(3000))
		}
		p.Rules = append(p.Rules, r)
	}
	return p
}

func failure(rnd *rand.Rand) retry.Failure {
	switch rnd.IntN(4) {
	case 0:
		return retry.Failure{Category: retry.OOM, Signal: 9}
	case 1:
		return retry.Failure{Category: retry.NodeLost}
	case 2:
		return retry.Failure{}
	}
	return retry.Failure{Category: retry.App, ExitCode: int32(1 + rnd.IntN(5))}
}

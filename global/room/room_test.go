package room

import (
	"strings"
	"testing"
)

// TestCheck: a submit is refused by the first limit that it would exceed, with the numbers. A new
// version of a job is accepted for longer than a new job.
func TestCheck(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		limits    Limits
		usage     Usage
		wrote     int64
		has       int64 // of namespace a
		namespace string
		grows     int64
		version   bool
		want      string
		used      int64
	}{
		"no limit":          {has: 1 << 40, namespace: "a", grows: mib},
		"below 90 %":        {usage: Usage{InUse: 89 * mib, Quota: 100 * mib}, namespace: "a", grows: mib},
		"90 %":              {usage: Usage{InUse: 90 * mib, Quota: 100 * mib}, namespace: "a", grows: 3 << 10, want: "in use (90 %), and it takes new jobs up to 90 % (new versions of jobs up to 95 %); this submit needs 3.0 KiB: purge jobs that have ended, stop and purge large ones", used: 90 * mib},
		"90 % with writes":  {usage: Usage{InUse: 80 * mib, Quota: 100 * mib}, wrote: 10 * mib, namespace: "a", grows: 1, want: "90.0 MiB of 100.0 MiB", used: 90 * mib},
		"94 %, a version":   {usage: Usage{InUse: 94 * mib, Quota: 100 * mib}, namespace: "a", grows: 1, version: true},
		"95 %, smaller":     {usage: Usage{InUse: 95 * mib, Quota: 100 * mib}, namespace: "a", grows: -1, version: true, want: "it takes new versions of jobs up to 95 %; this submit", used: 95 * mib},
		"all":               {limits: Limits{Jobs: 4 * mib}, has: 3 * mib, namespace: "b", grows: mib + 1, want: "--jobs-max", used: 3 * mib},
		"all, exact":        {limits: Limits{Jobs: 4 * mib}, has: 3 * mib, namespace: "b", grows: mib},
		"all, smaller":      {limits: Limits{Jobs: 2 * mib}, has: 3 * mib, namespace: "b", grows: -1},
		"a namespace":       {limits: Limits{Namespace: 4 * mib}, has: 3 * mib, namespace: "a", grows: mib + 1, want: "--namespace-max", used: 3 * mib},
		"another namespace": {limits: Limits{Namespace: 4 * mib}, has: 4 * mib, namespace: "b", grows: mib},
	} {
		t.Run(name, func(t *testing.T) {
			r := Room{Limits: c.limits}
			r.Measured(c.usage)
			r.Wrote(c.wrote)
			r.Weigh("a", 0, c.has)
			got := r.Check(Ask{Namespace: c.namespace, Grows: c.grows, Size: c.grows, Version: c.version})
			switch {
			case c.want == "" && got != nil:
				t.Errorf("refused: %v", got)
			case c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want) || got.Used != c.used):
				t.Errorf("%v, want %q with %d bytes", got, c.want, c.used)
			}
		})
	}
}

// TestAlarm: the stages of a filling store begin at 70, 90 and 95 %, and end five per cent below that. Each beginning and
// end is reported once, and the text says what the store refuses.
func TestAlarm(t *testing.T) {
	r := Room{}
	const fills, noJobs, nothing, over = "takes new jobs up to 90 %", "refuses new jobs, and takes new versions", "refuses new jobs and new versions", "no longer filling"
	for i, c := range []struct {
		inUse                 int64
		changed, worse, alarm bool
		says                  string
	}{
		{69, false, false, false, over}, {70, true, true, true, fills}, {80, false, false, true, fills}, {90, true, true, true, noJobs},
		{94, false, false, true, noJobs}, {95, true, true, true, nothing}, {91, false, false, true, noJobs}, {89, true, false, true, fills},
		{90, false, false, true, noJobs}, {84, true, false, true, fills}, {66, false, false, true, fills}, {64, true, false, false, over},
		{99, true, true, true, nothing}, {1, true, false, false, over},
	} {
		text, worse := r.Measured(Usage{InUse: c.inUse, Quota: 100})
		if (text != "") != c.changed || worse != c.worse || (len(r.Alarms()) > 0) != c.alarm || !strings.Contains(r.Filling(), c.says) {
			t.Errorf("step %d, %d %%: changed %q, worse %t, alarms %v, %s", i, c.inUse, text, worse, r.Alarms(), r.Filling())
		}
	}
}

// TestRoomLeftFollowsFromTheAverageSize: the number of jobs that still fit follows from the present average size, in the store
// or in memory, whichever allows fewer.
func TestRoomLeftFollowsFromTheAverageSize(t *testing.T) {
	r := Room{}
	if r.Left() != 0 {
		t.Errorf("without a limit %d", r.Left())
	}
	r.Measured(Usage{Quota: 8 << 30})
	if got, want := r.Left(), int64(8<<30)*90/100/4096; got != want {
		t.Errorf("empty: %d, want %d", got, want)
	}
	large := Room{}
	for range 3 {
		large.Weigh("a", 0, 640<<10)
	}
	large.Measured(Usage{InUse: 75 << 20, Quota: 100 << 20})
	if got := large.Left(); got != 24 {
		t.Errorf("three jobs of 640 KiB are stored: %d of that size fit into 15 MiB", got)
	}
	large.Measured(Usage{InUse: 91 << 20, Quota: 100 << 20})
	if got := large.Filling(); strings.Contains(got, "more jobs fit") {
		t.Errorf("nothing fits: %s", got)
	}
	for range 1000 {
		r.Weigh("a", 0, 1000)
	}
	r.Measured(Usage{InUse: 2_000_000, Quota: 10_000_000})
	if got := r.Left(); got != 3500 {
		t.Errorf("by the store %d", got)
	}
	r.Limits.Jobs = 2_000_000
	if got := r.Left(); got != 1000 {
		t.Errorf("by memory %d", got)
	}
	r.Weigh("a", 1000, 0)
	if r.Jobs != 999 || r.JobBytes != 999_000 {
		t.Errorf("%d jobs of %d bytes", r.Jobs, r.JobBytes)
	}
}

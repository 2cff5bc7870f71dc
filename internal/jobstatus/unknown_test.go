package jobstatus

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestSplitOfOwnedInstances(t *testing.T) {
	for name, c := range map[string]struct {
		part             Owned
		known            *nusav1.InstanceCounts
		wanted, unwanted int32
	}{
		"a service":                    {Owned{Wanted: 3, Last: &nusav1.InstanceCounts{Running: 2, Failed: 1}}, &nusav1.InstanceCounts{}, 3, 0},
		"never reported":               {Owned{Wanted: 3, Unwanted: 2}, &nusav1.InstanceCounts{}, 3, 2},
		"a batch job":                  {Owned{Wanted: 5, Batch: true, Last: &nusav1.InstanceCounts{Running: 1, Complete: 3, Failed: 1}}, &nusav1.InstanceCounts{Complete: 3, Failed: 1}, 1, 0},
		"a batch job that has ended":   {Owned{Wanted: 3, Batch: true, Last: &nusav1.InstanceCounts{Complete: 3}}, &nusav1.InstanceCounts{Complete: 3}, 0, 0},
		"a system job":                 {Owned{Wanted: 1, System: true, Last: &nusav1.InstanceCounts{Running: 4}}, &nusav1.InstanceCounts{}, 4, 0},
		"a system job, never reported": {Owned{Wanted: 1, System: true}, &nusav1.InstanceCounts{}, 1, 0},
		"a system job that stops":      {Owned{Unwanted: 1, System: true, Last: &nusav1.InstanceCounts{Running: 4}}, &nusav1.InstanceCounts{}, 0, 4},
		"scaled down":                  {Owned{Wanted: 1, Unwanted: 2, Last: &nusav1.InstanceCounts{Running: 3}}, &nusav1.InstanceCounts{}, 1, 2},
		"scaled down, and one waits":   {Owned{Wanted: 1, Unwanted: 2, Last: &nusav1.InstanceCounts{Running: 2, Pending: 1}}, &nusav1.InstanceCounts{}, 1, 2},
		"scaled down and stopped":      {Owned{Wanted: 1, Unwanted: 2, Last: &nusav1.InstanceCounts{Running: 1}}, &nusav1.InstanceCounts{}, 1, 0},
		"stopped":                      {Owned{Unwanted: 3, Last: &nusav1.InstanceCounts{Running: 2, Stopped: 1}}, &nusav1.InstanceCounts{}, 0, 2},
	} {
		known, wanted, unwanted := c.part.Split()
		if !proto.Equal(known, c.known) || wanted != c.wanted || unwanted != c.unwanted {
			t.Errorf("%s: known %v, unknown %d and %d, want %v, %d and %d", name, known, wanted, unwanted, c.known, c.wanted, c.unwanted)
		}
	}
}

func TestUnknownText(t *testing.T) {
	of := func(region string, n int32, silent time.Duration, former bool) *nusav1.UnknownInstances {
		return &nusav1.UnknownInstances{Region: region, Count: n, Silent: durationpb.New(silent), Former: former}
	}
	web := []*nusav1.UnknownInstances{of("tokyo", 2, 20*time.Second, false), of("jakarta", 4, 3*time.Minute, true)}
	cache := []*nusav1.UnknownInstances{of("tokyo", 1, 20*time.Second, false), {Region: "seoul", Count: 3, Former: true}}
	var many []*nusav1.UnknownInstances
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		many = append(many, of(name, 2, time.Hour, false))
	}
	for _, c := range []struct{ got, want string }{
		{UnknownText(Cuts(false, web)), "2 unknown for 20s: tokyo is cut off"},
		{UnknownText(Cuts(false, web, cache)), "3 unknown for 20s: tokyo is cut off"},
		{UnknownText(Cuts(true, web, cache)), "4 may still run at jakarta, cut off for 3m"},
		{UnknownText(Cuts(false, many)), "2 unknown for 1h: a is cut off; 2 unknown for 1h: b is cut off; 2 unknown for 1h: c is cut off; 4 in 2 more regions"},
		{UnknownText(nil), ""},
		{UnreachableText(Cuts(false, web)), "2 cannot be reached: tokyo has been cut off for 20s; they stop when it returns, or `nusa region lose tokyo` if it is gone for good"},
		{Outlook{Moves: true, Due: 250 * time.Second}.Text("jakarta"), "would move in 4m10s unless jakarta returns"},
		{Outlook{Moves: true, Due: time.Second, Why: "would move unless jakarta returns: its lease ends"}.Text("jakarta"), "would move in 1s unless jakarta returns: its lease ends"},
		{Outlook{Moves: true, Due: 40 * time.Second, To: "seoul, lima"}.Text("jakarta"), "would move to seoul, lima in 40s unless jakarta returns"},
		{Later("would move to seoul in 4m10s unless jakarta returns: after is 5m", "jakarta", 9*time.Second), "would move to seoul in 9s unless jakarta returns: after is 5m"},
		{Later("would move in 10s unless jakarta returns", "jakarta", 0), "due to move, unless jakarta returns first"},
		{Outlook{Moves: true, Why: "due: no region has room"}.Text("jakarta"), "due: no region has room"},
		{Outlook{Moves: true}.Text("jakarta"), "due to move, unless jakarta returns first"},
		{Outlook{Why: "stays: replace is false"}.Text("jakarta"), "stays: replace is false"},
		{LastText(&nusav1.InstanceCounts{Starting: 1, Running: 2}), "2 running, 1 starting"},
		{LastText(nil), "nothing reported"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 400 * time.Millisecond: "0s", 20*time.Second + 600*time.Millisecond: "21s", 59*time.Second + 700*time.Millisecond: "1m",
		3 * time.Minute: "3m", 250 * time.Second: "4m10s", 2 * time.Hour: "2h", 185 * time.Minute: "3h5m", 50 * time.Hour: "2d2h",
	} {
		if got := Span(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

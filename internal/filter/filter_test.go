package filter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestStates: each object has the states that it should, and lists know all of them.
func TestStates(t *testing.T) {
	now := time.Unix(1e9, 0)
	later := timestamppb.New(now.Add(time.Hour))
	counts := func(running int32) map[string]*nusav1.GroupStatus {
		return map[string]*nusav1.GroupStatus{"web": {Counts: &nusav1.InstanceCounts{Running: running, Pending: 1}}}
	}
	for _, c := range []struct {
		known []string
		got   []string
		want  string
	}{
		{JobStates, Job(&nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_PENDING, Groups: counts(0)}), "pending"},
		{JobStates, Job(&nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_PENDING, Groups: counts(2)}), "pending partial"},
		{JobStates, Job(&nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_RUNNING, Groups: counts(2)}), "running"},
		{AllocationStates, Allocation(nusav1.AllocState_ALLOC_STATE_RUNNING, nusav1.AllocDesired_ALLOC_DESIRED_RUN), "running"},
		{AllocationStates, Allocation(nusav1.AllocState_ALLOC_STATE_RUNNING, nusav1.AllocDesired_ALLOC_DESIRED_STOP), "running stopping"},
		{AllocationStates, Allocation(nusav1.AllocState_ALLOC_STATE_LOST, nusav1.AllocDesired_ALLOC_DESIRED_STOP), "lost"},
		{NodeStates, Node(&nusav1.Node{State: nusav1.NodeState_NODE_STATE_READY}), "ready"},
		{NodeStates, Node(&nusav1.Node{State: nusav1.NodeState_NODE_STATE_LEFT, Draining: true, Cordoned: true}), "left draining cordoned"},
		{RegionStates, Region(&nusav1.Region{State: nusav1.RegionState_REGION_STATE_DISCONNECTED, Silent: durationpb.New(1)}), "disconnected silent"},
		{OverrideStates, Override(&nusav1.Override{Stopped: true, Held: 2}), "stopped holding"},
		{OverrideStates, Override(&nusav1.Override{Stopped: true, Groups: []*nusav1.GroupOverride{{Group: "web"}}}), "scaled"},
		{ScheduleStates, Schedule(false, 0, 0, 0), "idle"},
		{ScheduleStates, Schedule(true, 1, 2, 3), "paused running waiting failing"},
		{SemaphoreStates, Semaphore(&nusav1.Semaphore{Units: 2, Held: 1, Waiters: 1}), "free waiting"},
		{SemaphoreStates, Semaphore(&nusav1.Semaphore{Units: 2, Held: 3}), "full"},
		{TokenStates, []string{Token(&nusav1.JoinToken{ExpiresAt: later, Uses: 1}, now)}, "valid"},
		{TokenStates, []string{Token(&nusav1.JoinToken{ExpiresAt: later}, now)}, "used"},
		{TokenStates, []string{Token(&nusav1.JoinToken{ExpiresAt: timestamppb.New(now), Uses: 1}, now)}, "ended"},
		{TokenStates, []string{Token(&nusav1.JoinToken{ExpiresAt: timestamppb.New(now), Revoked: true}, now)}, "revoked"},
	} {
		if got := strings.Join(c.got, " "); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
		if err := Check(c.got, c.known); err != nil {
			t.Errorf("%v: %v", c.got, err)
		}
		if !Has(nil, c.got...) || !Has([]string{"other", c.got[len(c.got)-1]}, c.got...) || Has([]string{"other"}, c.got...) {
			t.Errorf("%v: Has is wrong", c.got)
		}
	}
	for _, of := range []struct {
		enum  []string
		known []string
	}{
		{Words(nusav1.JobState(0)), JobStates}, {Words(nusav1.AllocState(0)), AllocationStates},
		{Words(nusav1.NodeState(0)), NodeStates}, {Words(nusav1.RegionState(0)), RegionStates},
	} {
		if err := Check(of.enum, of.known); err != nil {
			t.Errorf("lists do not know a state of a message: %v", err)
		}
	}
}

// TestCheck: the error about an unknown state lists the states.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{Check([]string{"free", "open"}, SemaphoreStates), `"open" is not a state: use free, full or waiting`},
		{Check([]string{""}, SemaphoreStates), `"" is not a state: use free, full or waiting`},
		{CheckEnum([]nusav1.BusState{1, 9}), "9 is not a state: use ok, failing or disabled"},
		{CheckEnum([]nusav1.BusState{0}), "0 is not a state: use ok, failing or disabled"},
		{CheckEnum([]nusav1.BusState{1, 2, 3}), ""},
		{Check(nil, SemaphoreStates), ""},
	} {
		switch {
		case c.want == "" && c.err == nil:
		case status.Code(c.err) != codes.InvalidArgument || !strings.Contains(c.err.Error(), c.want):
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
}

func TestLabels(t *testing.T) {
	labels := map[string]string{"team": "sea", "tier": ""}
	for _, c := range []struct {
		want map[string]string
		has  bool
	}{
		{nil, true}, {map[string]string{"team": "sea"}, true}, {map[string]string{"team": "sea", "tier": ""}, true},
		{map[string]string{"team": "land"}, false}, {map[string]string{"other": ""}, false},
	} {
		if got := Labels(labels, c.want); got != c.has {
			t.Errorf("%v: %v", c.want, got)
		}
	}
}

// TestPagesHaveTheFirst: whatever the order in which objects are found, the pages have all of them in order, and each
// once.
func TestPagesHaveTheFirst(t *testing.T) {
	const n = 500
	for _, limit := range []int{1, 2, 7, n - 1, n, 2 * n} {
		var got []string
		token, pages := "", 0
		more := true
		for ; more; pages++ {
			first := NewFirst[string](limit+1, token)
			for _, i := range rand.New(rand.NewPCG(uint64(limit), 1)).Perm(n) {
				if key := fmt.Sprintf("%04d", i); first.Wants(key) {
					first.Add(key, key)
				}
				if len(first.some) >= 4*(limit+1) {
					t.Fatalf("%d objects are kept for a page of %d", len(first.some), limit)
				}
			}
			var page []string
			page, token = first.Page()
			if len(page) > limit {
				t.Fatalf("a page of %d has %d", limit, len(page))
			}
			got, more = append(got, page...), token != ""
		}
		if len(got) != n || !slices.IsSorted(got) || len(slices.Compact(got)) != n || pages != (n+limit-1)/limit {
			t.Errorf("%d pages of %d have %d objects", pages, limit, len(got))
		}
	}
}

package sample

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Noon is the present time in all renderings.
var Noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func Ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(Noon.Add(-d)) }
func Lasting(d time.Duration) *durationpb.Duration {
	return durationpb.New(d)
}

func Job() *nusav1.Job {
	return &nusav1.Job{
		Spec: &nusav1.JobSpec{Namespace: "default", Name: "api", Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: map[string]*nusav1.Group{
			"web": {Count: proto.Int32(6)}, "cache": {Count: proto.Int32(1)}}},
		Version: 3, Revision: 120, Submitted: Ago(3*time.Hour + 20*time.Minute),
		Status: &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_PENDING, Message: "2 of 7 instances have no region", Groups: map[string]*nusav1.GroupStatus{
			"cache": {Desired: 1, Counts: &nusav1.InstanceCounts{Running: 1}, Regions: map[string]*nusav1.InstanceCounts{"japaneast": {Running: 1}},
				Slots: []*nusav1.Slot{{Group: "cache", To: 1, Region: "japaneast", State: nusav1.SlotState_SLOT_STATE_ACCEPTED, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 3, PlacedBecause: "score 80.0 (capacity 30.0, near 50.0)"}}},
			"web": {Desired: 6, Unowned: 2, Counts: &nusav1.InstanceCounts{Pending: 2, Starting: 1, Running: 3},
				Regions: map[string]*nusav1.InstanceCounts{"japaneast": {Running: 3}, "southeastasia": {Starting: 1}},
				Pending: []*nusav1.CountedReason{
					{Reason: nusav1.Reason_REASON_RTT_TOO_HIGH, Count: 3, What: "region", Message: "p50 over 80 ms"},
					{Reason: nusav1.Reason_REASON_INSUFFICIENT_MEMORY, Count: 1, What: "node"}},
				Slots: []*nusav1.Slot{
					{Group: "web", From: 0, To: 3, Region: "japaneast", State: nusav1.SlotState_SLOT_STATE_ACCEPTED, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 3, PlacedBecause: "score 80.0"},
					{Group: "web", From: 3, To: 4, Region: "southeastasia", State: nusav1.SlotState_SLOT_STATE_OFFERED, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 3},
					{Group: "web", From: 6, To: 8, Region: "eastus", State: nusav1.SlotState_SLOT_STATE_ACCEPTED, Desired: nusav1.SlotDesired_SLOT_DESIRED_STOP, JobVersion: 2, Reason: nusav1.Reason_REASON_OUT_OF_RANGE, Message: "scaled down"}}},
		}},
	}
}

// Waiting returns a job in which two groups wait for the same reason. A third group waits
// for one reason in two regions.
func Waiting() *nusav1.Job {
	j := Job()
	full := &nusav1.CountedReason{Reason: nusav1.Reason_REASON_INSUFFICIENT_CPU, Count: 2, What: "region", Message: "eastus: needs 64 cpu, the largest node, e1, has 4; japaneast: needs 64 cpu, the largest node, j1, has 8"}
	memory := &nusav1.CountedReason{Reason: nusav1.Reason_REASON_INSUFFICIENT_MEMORY, Count: 1, What: "node"}
	failed := func(region string, n int32) *nusav1.CountedReason {
		return &nusav1.CountedReason{Reason: nusav1.Reason_REASON_BACKOFF, Count: n, What: "instance", Region: region, Message: region + ": last failure: task t exited with code 3, after 3 of 3 restarts within 10m0s"}
	}
	slots := func(group string, n int32) (out []*nusav1.Slot) {
		for i, region := range []string{"eastus", "japaneast"} {
			out = append(out, &nusav1.Slot{Group: group, From: int32(i) * n, To: int32(i+1) * n, Region: region, State: nusav1.SlotState_SLOT_STATE_ACCEPTED, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 3, PlacedBecause: "score 20.0 (capacity 20.0), fits 100"})
		}
		return out
	}
	both := map[string]*nusav1.InstanceCounts{"eastus": {Pending: 5}, "japaneast": {Pending: 4}}
	j.Status = &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_PENDING, Groups: map[string]*nusav1.GroupStatus{
		"a": {Desired: 3, Unowned: 3, Counts: &nusav1.InstanceCounts{Pending: 3}, Regions: both, Pending: []*nusav1.CountedReason{full, memory}},
		"b": {Desired: 3, Unowned: 3, Counts: &nusav1.InstanceCounts{Pending: 3}, Pending: []*nusav1.CountedReason{full, memory}},
		"c": {Desired: 10, Counts: &nusav1.InstanceCounts{Pending: 9, Running: 1}, Regions: both, Pending: []*nusav1.CountedReason{failed("eastus", 5), failed("japaneast", 4)}, Slots: slots("c", 5)},
	}, Message: "15 of 16 instances wait: a: not enough cpu: eastus: needs 64 cpu, the largest node, e1, has 4; and 1 more region says so"}
	return j
}

// CutOff returns a job with three instances in a region that is cut off, and four that
// moved away from another region.
func CutOff() *nusav1.Job {
	j := Job()
	j.Spec.Groups = map[string]*nusav1.Group{"web": {Count: proto.Int32(8)}, "cache": {Count: proto.Int32(1)}}
	slot := func(group string, from, to int32, region, why string) *nusav1.Slot {
		return &nusav1.Slot{Group: group, From: from, To: to, Region: region, State: nusav1.SlotState_SLOT_STATE_ACCEPTED, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 3, PlacedBecause: why}
	}
	silent := Lasting(20 * time.Second)
	moved := slot("web", 2, 6, "seoul", "taken over from jakarta")
	moved.Home = "jakarta"
	moved.Former = []*nusav1.FormerOwner{{Region: "jakarta", Generation: 90, Fence: 2, MayRun: true}}
	j.Status = &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_PENDING, Message: "3 unknown for 20s: tokyo is cut off; 4 may still run at jakarta, cut off for 3m", Groups: map[string]*nusav1.GroupStatus{
		"cache": {Desired: 1, Counts: &nusav1.InstanceCounts{Unknown: 1}, Regions: map[string]*nusav1.InstanceCounts{"tokyo": {Unknown: 1}}, Slots: []*nusav1.Slot{slot("cache", 0, 1, "tokyo", "score 80.0")},
			Unknown: []*nusav1.UnknownInstances{{Region: "tokyo", Count: 1, Silent: silent, Last: &nusav1.InstanceCounts{Running: 1}, Message: "stays: disconnect.region.replace is false; `nusa region lose tokyo` moves it"}}},
		"web": {Desired: 8, Counts: &nusav1.InstanceCounts{Running: 6, Unknown: 2}, Regions: map[string]*nusav1.InstanceCounts{"japaneast": {Running: 2}, "seoul": {Running: 4}, "tokyo": {Unknown: 2}},
			Slots: []*nusav1.Slot{slot("web", 0, 2, "japaneast", "score 80.0"), moved, slot("web", 6, 8, "tokyo", "score 20.0")},
			Unknown: []*nusav1.UnknownInstances{
				{Region: "tokyo", Count: 2, Silent: silent, Last: &nusav1.InstanceCounts{Running: 1, Starting: 1}, MoveDue: Lasting(40 * time.Second), Message: "would move in 40s unless tokyo returns"},
				{Region: "jakarta", Count: 4, Former: true, Silent: Lasting(3 * time.Minute), Last: &nusav1.InstanceCounts{Running: 4}, Message: "may still run at jakarta, cut off for 3m"}}},
	}}
	return j
}

// Update returns a job whose rollout has replaced four of six instances.
func Update() *nusav1.Job {
	j := Job()
	c := &nusav1.InstanceCounts{Starting: 1, Running: 5, Outdated: 2}
	j.Status = &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_STARTING, Groups: map[string]*nusav1.GroupStatus{"web": {
		Desired: 6, Counts: c, Regions: map[string]*nusav1.InstanceCounts{"japaneast": c}}}}
	return j
}

// Staged returns a job whose rollout is in the third of five regions.
func Staged() *nusav1.Job {
	j := Job()
	g := &nusav1.GroupStatus{Desired: 5, Counts: &nusav1.InstanceCounts{Running: 5, Outdated: 3}, Regions: map[string]*nusav1.InstanceCounts{}}
	for i, region := range []string{"kobe", "nagoya", "osaka", "sapporo", "tokyo"} {
		version, c := int64(3), &nusav1.InstanceCounts{Running: 1}
		if i >= 2 {
			c.Outdated = 1
		}
		if i > 2 {
			version = 2
		}
		g.Regions[region] = c
		g.Slots = append(g.Slots, &nusav1.Slot{Group: "web", From: int32(i), To: int32(i + 1), Region: region, State: nusav1.SlotState_SLOT_STATE_ACCEPTED,
			Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: version})
	}
	j.Status = &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_STARTING, Groups: map[string]*nusav1.GroupStatus{"web": g}}
	return j
}

// Ordered returns a job whose version goes through regions in an order, with a pause after each.
func Ordered() *nusav1.Job {
	j := Staged()
	j.Spec.Groups["web"].Update = &nusav1.Update{Regions: &nusav1.UpdateRegions{Order: []string{"nagoya", "kobe"}, PauseBetween: durationpb.New(10 * time.Minute)}}

	j.Status.Rollout = &nusav1.Rollout{Version: 3, State: nusav1.RolloutState_ROLLOUT_STATE_RUNNING, PauseLeft: durationpb.New(7 * time.Minute), Regions: map[string]*nusav1.RegionRollout{
		"nagoya": {Desired: 1, Healthy: 1, Turn: 1, Ended: Ago(13 * time.Minute)},
		"kobe":   {Desired: 1, Turn: 2, Ended: Ago(3 * time.Minute), Failed: "web: 1 of 1 instances failed"},
		"osaka":  {Desired: 1, Outdated: 1, Waits: "version 3 waits for the end of the pause after region kobe"},
	}}
	return j
}

// Turns returns the plan of the update that Staged shows, before the update began.
func Turns() *nusav1.PlanResponse {
	p := &nusav1.PlanResponse{Revision: 120, Diff: []*nusav1.DiffLine{{Field: "groups.web.tasks.server.env.A", New: "1"}}}
	for _, s := range Staged().GetStatus().GetGroups()["web"].GetSlots()[:3] {
		s.PlacedBecause, s.Message = "score 80.0", "version 3 waits for region kobe to be done"
		if s.GetFrom() == 0 {
			s.Message = ""
		}
		p.Slots = append(p.Slots, s)
	}
	return p
}

// Disconnected returns a region whose session has ended.
func Disconnected() *nusav1.Region {
	r := Regions()[0]
	r.State, r.Cordoned = nusav1.RegionState_REGION_STATE_DISCONNECTED, false
	return r
}

// Silent returns three regions: one that is cut off and whose work is going to move, one
// that was lost, and one that cannot commit.
func Silent() []*nusav1.Region {
	of := func(name string, state nusav1.RegionState) *nusav1.Region {
		r := Disconnected()
		r.Definition = &nusav1.RegionDefinition{Name: name}
		r.State = state
		return r
	}
	tokyo, jakarta, lima := of("tokyo", nusav1.RegionState_REGION_STATE_DISCONNECTED), of("jakarta", nusav1.RegionState_REGION_STATE_LOST), of("lima", nusav1.RegionState_REGION_STATE_CONNECTED)
	tokyo.Silent, tokyo.ReportAge, tokyo.MoveDue = Lasting(20*time.Second), Lasting(22*time.Second), Lasting(40*time.Second)
	tokyo.FailoverMessage = "would move in 40s unless tokyo returns"
	jakarta.Silent, jakarta.ReportAge = Lasting(3*time.Minute), Lasting(3*time.Minute)
	jakarta.Lost = &nusav1.LostRegion{At: Ago(2 * time.Minute), Fence: 2, By: "ops", Why: "the hall is under water", NothingRuns: true}
	lima.CommitBlocked, lima.Draining = Lasting(12*time.Second), true
	return []*nusav1.Region{tokyo, jakarta, lima}
}

// Elected returns two regions as a new active server shows them: one immediately after the
// election, and one some seconds later.
func Elected() []*nusav1.Region {
	out := Silent()[:2]
	for _, r := range out {
		r.State, r.Lost, r.Silent, r.MoveDue, r.ReportAge, r.FailoverMessage = nusav1.RegionState_REGION_STATE_DISCONNECTED, nil, nil, nil, nil, ""
		r.Awaited = Lasting(2 * time.Second)
	}
	out[1].Awaited, out[1].Silent = Lasting(7*time.Second), Lasting(7*time.Second)
	return out
}

func Plan() *nusav1.PlanResponse {
	return &nusav1.PlanResponse{
		Diff: []*nusav1.DiffLine{
			{Field: "groups.web.count", Old: "6", New: "8"}, {Field: "groups.web.tasks.server.env.A", New: "1"},
			{Field: "groups.web.tasks.server.templates[0].text", Old: "a\nb\n"}},
		Slots: []*nusav1.Slot{
			{Group: "web", From: 0, To: 6, Region: "japaneast", PlacedBecause: "score 80.0"},
			{Group: "web", From: 6, To: 7, Region: "southeastasia", PlacedBecause: "score 60.0"}},
		Changes: []*nusav1.GroupChange{
			{Group: "web", Instances: "0-4", InPlace: true}, {Group: "web", Instances: "5", Message: "node n1 has no room for memory 64MiB to 128MiB"}},
		Unplaced: map[string]int32{"web": 1, "cache": 0}, Warnings: []string{"groups.web may run an instance twice"}, Revision: 120,
		Explanation: Explanation(),
	}
}

func Explanation() *nusav1.Explanation {
	return &nusav1.Explanation{Age: Lasting(90 * time.Second), Groups: []*nusav1.GroupExplanation{{
		Group: "web", Desired: 8, Unplaced: 1, Divide: nusav1.Divide_DIVIDE_BEST, DivideWhy: "the default with regions.near",
		Pending: []*nusav1.CountedReason{{Reason: nusav1.Reason_REASON_SPREAD_LIMIT, Count: 1, What: "instance", Message: "regions.spread.min is 3 and only 2 regions can take instances: the share of the missing regions waits"}},
		Regions: []*nusav1.RegionVerdict{
			{Region: "southeastasia", Taken: 6, Fits: 24, Message: "takes 6", Score: 70, Terms: []*nusav1.ScoreTerm{{Name: "capacity", Value: 20, Detail: "66% of its cpu is unreserved"}, {Name: "near", Value: 50, Detail: "it is the place"}},
				Inputs: []*nusav1.InputAge{{Name: "report", Age: Lasting(4200 * time.Millisecond)}}},
			{Region: "japaneast", Taken: 1, Fits: 1, Score: 45.62, Terms: []*nusav1.ScoreTerm{{Name: "capacity", Value: -0.5}, {Name: "near", Value: 26.12, Detail: "p50 68 ms measured to southeastasia"}, {Name: "sticky", Value: 10}},
				Inputs: []*nusav1.InputAge{{Name: "report", Age: Lasting(time.Second)}, {Name: "rtt southeastasia", Age: Lasting(24 * time.Second)}}},
			{Region: "westus", Fits: 5, Reason: nusav1.Reason_REASON_LOWER_SCORE, Message: "suitable, but others come first", Score: 12, Terms: []*nusav1.ScoreTerm{{Name: "capacity", Value: 12}}},
			{Region: "eastus", Fits: 24, Reason: nusav1.Reason_REASON_RTT_TOO_HIGH, Message: "p50 224 ms measured to southeastasia,\nat most 80 ms is required"},
			{Region: "frankfurt", Reason: nusav1.Reason_REASON_REGION_DISCONNECTED},
		},
		Near: NearResults(),
		Bounds: []*nusav1.NearBound{{
			Region: "japaneast", Bound: "p99 at most 40ms to southeastasia", State: "broken", Since: Lasting(11 * time.Minute), Latest: Lasting(68 * time.Millisecond),
			Worst: Lasting(91 * time.Millisecond), SustainedIn: Lasting(4 * time.Minute), Message: "stays for now: it counts once it was broken for 4m0s more than kept",
		}},
		Nodes: []*nusav1.NodeVerdict{
			{NodeId: "aaaabbbb-cccc", NodeName: "n1", Taken: 1, Score: 0.37, Terms: []*nusav1.ScoreTerm{{Name: "fit", Value: 0.62}, {Name: "anti-affinity", Value: -0.25, Detail: "1 here"}}, Inputs: []*nusav1.InputAge{{Name: "statistics", Age: Lasting(2 * time.Second)}}},
			{NodeId: "ddddeeee-ffff", NodeName: "n2", Reason: nusav1.Reason_REASON_CONSTRAINT, Message: `the node has no "disk"`},
		},
	}}}
}

func NearResults() []*nusav1.NearFare {
	result := func(region string, f *nusav1.NearFare) *nusav1.NearFare {
		f.Region, f.Bound, f.Required, f.Percentile, f.MaxRtt, f.Target = region, "p99 at most 40ms to southeastasia", true, 99, Lasting(40*time.Millisecond), "southeastasia"
		return f
	}
	ok, measured := nusav1.EdgeState_EDGE_STATE_OK, nusav1.RTTSource_RTT_SOURCE_MEASURED
	return []*nusav1.NearFare{
		result("southeastasia", &nusav1.NearFare{Rtt: Lasting(0), Source: measured, State: ok, Age: Lasting(0), Verdict: "kept"}),
		result("japaneast", &nusav1.NearFare{Rtt: Lasting(68400 * time.Microsecond), Source: measured, State: ok, Age: Lasting(12 * time.Second), Method: "udp", Verdict: "broken"}),
		result("westus", &nusav1.NearFare{Rtt: Lasting(38 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_PREDICTED, State: ok, Error: 0.12, Verdict: "unknown",
			Message: "only what was measured and is fresh counts, unless the clause says unknown: predicted"}),
		result("eastus", &nusav1.NearFare{State: nusav1.EdgeState_EDGE_STATE_UNREACHABLE, Source: measured, Age: Lasting(3 * time.Minute), Verdict: "unknown"}),
		{Region: "frankfurt", Bound: "p50 to Jakarta", Percentile: 50, Rtt: Lasting(115 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_ESTIMATED, State: ok, Error: 0.5, Verdict: "soft", Message: "counts 21 of 50 in the score"},
	}
}

func Alloc() *nusav1.Allocation {
	return &nusav1.Allocation{
		Id: "11112222-3333-4444-5555-666677778888", Namespace: "default", Job: "api", Group: "web", Index: 4, JobVersion: 3, Region: "japaneast",
		NodeId: "aaaabbbb-cccc", NodeName: "n1", Desired: nusav1.AllocDesired_ALLOC_DESIRED_RUN, State: nusav1.AllocState_ALLOC_STATE_RUNNING,
		Generation: 118, Epoch: 2, Attempt: 1, Created: Ago(12 * time.Minute), PlacedBecause: "best of 3 fitting nodes of 5: fit 0.62",
		Resources: &nusav1.Resources{CpuMilli: 1500, MemoryBytes: 256 << 20, DiskBytes: 1 << 30}, Ports: map[string]int32{"http": 20001, "admin": 9000},
		Tasks: map[string]*nusav1.TaskState{
			"server": {State: nusav1.AllocState_ALLOC_STATE_RUNNING, Restarts: 2, Run: 3, Started: Ago(5 * time.Second), Check: &nusav1.CheckState{
				Check: "http :20001/healthz", State: nusav1.HealthState_HEALTH_STATE_HEALTHY, Since: Ago(4 * time.Second),
				Message: "status 503: no database", Failures: 1, Late: Lasting(6 * time.Second)}, Events: []*nusav1.TaskEvent{
				{Time: Ago(11 * time.Minute), Type: "started", Message: "run 1"}, {Time: Ago(45 * time.Second), Type: "restarted", Message: "exit code 1"}}},
			"init": {State: nusav1.AllocState_ALLOC_STATE_FAILED, ExitCode: 3, Reason: nusav1.Reason_REASON_EXITED, Message: "exit code 3"},
			"side": {State: nusav1.AllocState_ALLOC_STATE_STOPPED, Signal: 9},
		},
	}
}

// ManyAllocs returns the allocations of a job with two groups, in which web[1] was
// replaced.
func ManyAllocs() []*nusav1.Allocation {
	var out []*nusav1.Allocation
	for i, at := range []struct {
		group string
		index int32
	}{{"cache", 0}, {"web", 0}, {"web", 1}, {"web", 1}} {
		out = append(out, &nusav1.Allocation{Id: fmt.Sprintf("%d%d%d%d0000-many", i, i, i, i), Namespace: "default", Job: "many", Group: at.group, Index: at.index,
			Region: "japaneast", NodeName: "n1", Created: Ago(time.Duration(9-i) * time.Minute), Tasks: map[string]*nusav1.TaskState{"main": {}}})
	}
	return out
}

// EverywhereAllocs returns the allocations of a system job. Their numbers are equal in two
// regions.
func EverywhereAllocs() []*nusav1.Allocation {
	var out []*nusav1.Allocation
	for i, region := range []string{"eastus", "japaneast"} {
		out = append(out, &nusav1.Allocation{Id: fmt.Sprintf("%d%d%d%d8888-watch", i, i, i, i), Namespace: "default", Job: "watch", Group: "node", Index: 1,
			Region: region, NodeName: region + "-n1", Created: Ago(time.Minute), Tasks: map[string]*nusav1.TaskState{"main": {}}})
	}
	return out
}

func Allocs() []*nusav1.Allocation {
	lost := Alloc()
	lost.Id, lost.Index, lost.State, lost.Ports = "99998888-7777", 5, nusav1.AllocState_ALLOC_STATE_LOST, nil
	lost.Reason, lost.Message, lost.NodeName, lost.Created = nusav1.Reason_REASON_NODE_LOST, "silent for 30s", "", Ago(75*time.Hour)
	stopping := Alloc()
	stopping.NodeSilent = Lasting(5 * time.Second)
	stopping.Id, stopping.Desired, stopping.Ports = "55554444-7777", nusav1.AllocDesired_ALLOC_DESIRED_STOP, nil
	return []*nusav1.Allocation{Alloc(), stopping, lost}
}

func Regions() []*nusav1.Region {
	return []*nusav1.Region{
		{
			Definition: &nusav1.RegionDefinition{Name: "japaneast", Location: &nusav1.Location{Latitude: 35.68, Longitude: 139.77, Name: "Tokyo"}, Labels: map[string]string{"jurisdiction": "jp", "provider": "azure"}, Description: "two halls"},
			State:      nusav1.RegionState_REGION_STATE_CONNECTED, Cordoned: true, ClusterId: "f93b12f2-0000", Incarnation: 1, Term: 2, Fence: 3, Master: "j1", MasterAddress: "10.0.0.1:7610", DefinedByOperator: true,
			Servers:   []*nusav1.RegionalServer{{Id: "j1", Address: "10.0.0.1:7610", Leader: true, Healthy: true, Version: "1.2.3"}, {Id: "j2", Address: "10.0.0.2:7610", Version: "1.2.3"}},
			ReportAge: Lasting(2300 * time.Millisecond),
			Report: &nusav1.RegionReport{NodesReady: 12, NodesLost: 1, NodesDraining: 1, QueueLength: 4, Allocations: map[string]int32{"running": 30, "starting": 2, "failed": 1, "lost": 0},
				Capacity: &nusav1.Resources{CpuMilli: 96_000, MemoryBytes: 384 << 30, DiskBytes: 10 << 40}, Allocated: &nusav1.Resources{CpuMilli: 40_500, MemoryBytes: 100 << 30, DiskBytes: 1 << 40},
				Free: &nusav1.Resources{CpuMilli: 55_500, MemoryBytes: 284 << 30, DiskBytes: 9 << 40}, Utilisation: &nusav1.Utilisation{Cpu: 0.314, Memory: 0.2, Disk: 0.05, NetworkIn: 12_500_000, NetworkOut: 900},
				Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{{Nodes: 9, Pool: "default", Free: &nusav1.Resources{CpuMilli: 4250, MemoryBytes: 24 << 30, DiskBytes: 500 << 30}}, {Nodes: 3, Pool: "gpu", Free: &nusav1.Resources{CpuMilli: 500, MemoryBytes: 1 << 30}}}}},
		},
		{Definition: &nusav1.RegionDefinition{Name: "jakarta"}, State: nusav1.RegionState_REGION_STATE_DEFINED},
	}
}

func Nodes() []*nusav1.Node {
	return []*nusav1.Node{
		{
			Id: "aaaabbbb-cccc", Name: "n1", Region: "japaneast", State: nusav1.NodeState_NODE_STATE_READY, Draining: true, Drain: &nusav1.NodeDrain{Deadline: Lasting(5 * time.Minute), Left: 2, SystemLeft: 1}, Address: "10.0.1.1", Allocations: 3, Registered: Ago(50 * time.Hour), StatsAge: Lasting(1500 * time.Millisecond),
			Allocated: &nusav1.Resources{CpuMilli: 1500, MemoryBytes: 768 << 20, DiskBytes: 1 << 30},
			Inventory: &nusav1.NodeInventory{Capacity: &nusav1.Resources{CpuMilli: 8000, MemoryBytes: 32 << 30, DiskBytes: 500 << 30}, Pool: "default", Labels: map[string]string{"rack": "r1", "disk": "ssd"}, InstanceQuota: 50, Version: "1.2.3",
				Drivers:      []*nusav1.DriverInfo{{Name: "incus", Message: "socket missing"}, {Name: "process", Healthy: true, Capabilities: []string{"self_fencing", "cpu_limit"}}},
				Gpus:         []*nusav1.GPUDevice{{Id: "GPU-11112222-3333", Model: "a100", MemoryBytes: 80 << 30}, {Id: "GPU-44445555-6666", Model: "t4"}},
				UnusableGpus: []*nusav1.GPUDevice{{Id: "GPU-77778888-9999", Model: "a100", MemoryBytes: 80 << 30, Address: "0000:1b:00.0", Problem: "3 uncorrected memory errors since the driver was loaded"}},
				Facts: &nusav1.HostFacts{Os: "linux", Platform: "debian", PlatformVersion: "12.11", Kernel: "6.12.0", Arch: "x86_64", CpuModel: "EPYC", CpuCores: 8, CpuPhysicalCores: 4, CpuMhz: 2595.5, MemoryBytes: 32 << 30, SwapBytes: 1 << 30, BootTime: Ago(60 * time.Hour),
					Disks: []*nusav1.DiskFacts{{Device: "/dev/sda1", Mount: "/", FsType: "ext4", TotalBytes: 500 << 30}}, Networks: []*nusav1.NetworkFacts{{Name: "eth0", Addresses: []string{"10.0.1.1/24"}}}}},
			GpuUses: []*nusav1.GPUUse{
				{Device: "GPU-11112222-3333", ShareMilli: 250, Allocation: "11112222-3333", Namespace: "default", Job: "api", Group: "web", Index: 0},
				{Device: "GPU-11112222-3333", ShareMilli: 500, Allocation: "44445555-3333", Namespace: "default", Job: "near@japaneast", Group: "all", Index: 2},
			},
			Leaving: []*nusav1.LeavingGroup{
				{Namespace: "default", Job: "api", Group: "web", Count: 2, Fits: 1, Reason: nusav1.Reason_REASON_INSUFFICIENT_CPU, Message: "needs 4 cpu, n3 has 0.5 free"},
				{Namespace: "default", Job: "near@japaneast", Group: "all", Count: 1, Fits: 1},
			},
			Stats: &nusav1.NodeStats{Cpu: 0.25, Load1: 2.5, MemoryUsedBytes: 8 << 30, MemoryAvailableBytes: 24 << 30, Disks: []*nusav1.DiskStats{{Mount: "/", UsedBytes: 50 << 30, TotalBytes: 500 << 30}}, Networks: []*nusav1.NetworkStats{{InPerSecond: 2048, OutPerSecond: 100}}},
		},
		{Id: "ddddeeee-ffff", Name: "n2-世界", Region: "japaneast", State: nusav1.NodeState_NODE_STATE_LOST, Silent: Lasting(5 * time.Minute), Cordoned: true, Inventory: &nusav1.NodeInventory{Capacity: &nusav1.Resources{CpuMilli: 500, MemoryBytes: 1 << 30}, Pool: "gpu"}},
	}
}

func Tree() *nusav1.TopologyTree {
	return &nusav1.TopologyTree{
		Servers: []*nusav1.GlobalServer{{Name: "g1", Address: "10.0.0.9:7600", Active: true, Version: "1.2.3"}, {Name: "g2", Address: "10.0.0.8:7600", Version: "1.2.3"}},
		Regions: Regions(), Nodes: Nodes(), Errors: []*nusav1.PartialError{{Region: "jakarta", Message: "not connected"}},
	}
}

// StoredSpec returns the spec that a server stores for JobFile with the given name.
func StoredSpec(name string) *nusav1.JobSpec {
	spec, err := job.Parse(fmt.Appendf(nil, JobFile, name, "batch"), "hello.yaml")
	if err != nil {
		panic(err)
	}
	job.Default(spec)
	return spec
}

// EndedAllocs returns n allocations of a batch job, the oldest first.
func EndedAllocs(n int) []*nusav1.Allocation {
	var out []*nusav1.Allocation
	for i := range n {
		a := Alloc()
		a.Id, a.Index, a.Ports = fmt.Sprintf("%08d-0000", i), int32(i), nil
		a.Created = timestamppb.New(time.Now().Add(time.Duration(i-n) * time.Hour))
		a.State = nusav1.AllocState_ALLOC_STATE_COMPLETE
		a.Tasks = map[string]*nusav1.TaskState{"t": {State: nusav1.AllocState_ALLOC_STATE_COMPLETE}}
		switch i {
		case n - 1:
			a.State = nusav1.AllocState_ALLOC_STATE_FAILED
			a.Tasks["t"] = &nusav1.TaskState{State: nusav1.AllocState_ALLOC_STATE_FAILED, ExitCode: 3}
		case n - 2:
			a.State = nusav1.AllocState_ALLOC_STATE_FAILED
			a.Tasks["side"] = &nusav1.TaskState{State: nusav1.AllocState_ALLOC_STATE_FAILED, Signal: 9}
		}
		out = append(out, a)
	}
	return out
}

// JobFile is a job file in which a name and a type must be filled in.
const JobFile = "name: %s\ntype: %s\ngroups: {web: {count: 2, tasks: {t: {driver: process, config: {command: x}}}}}\n"

// System returns a system job in two regions.
func System() *nusav1.Job {
	slot := func(region string) *nusav1.Slot {
		return &nusav1.Slot{Group: "node", To: 1, Region: region, State: nusav1.SlotState_SLOT_STATE_ACCEPTED, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, JobVersion: 1, PlacedBecause: "system jobs run in every region"}
	}
	return &nusav1.Job{
		Spec:    &nusav1.JobSpec{Namespace: "default", Name: "watch", Type: nusav1.JobType_JOB_TYPE_SYSTEM, Groups: map[string]*nusav1.Group{"node": {}}},
		Version: 1, Revision: 9, Status: &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_RUNNING, Groups: map[string]*nusav1.GroupStatus{
			"node": {Desired: 4, Counts: &nusav1.InstanceCounts{Running: 4}, Slots: []*nusav1.Slot{slot("eastus"), slot("japaneast")}}}},
	}
}

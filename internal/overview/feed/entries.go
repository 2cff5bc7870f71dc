package feed

import (
	"math"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/overview"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Steps of loads: what share of the capacity, and which time, is noticeable. Measured use
// changes all the time, even on idle machines, so its step is larger.
const (
	share    = 0.01
	use      = 0.05
	moment   = 2.0 // seconds
	doubling = 1.0 // a doubling of a rate or a count
)

// exact encodes the values of which every change is noticeable.
func exact(m proto.Message) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err.Error() // not valid UTF-8: the message cannot be sent either
	}
	return string(b)
}

func at(t *timestamppb.Timestamp) overview.Load {
	if t == nil {
		return overview.Load{Step: moment}
	}
	return overview.Load{Value: float64(t.AsTime().UnixMilli()) / 1000, Step: moment}
}

// rate returns a load of which large relative changes are noticeable.
func rate(v float64) overview.Load {
	return overview.Load{Value: math.Log2(1 + v/1024), Step: doubling}
}

// amounts returns the loads of resources that are taken from a capacity.
func amounts(taken, capacity *nusav1.Resources) []overview.Load {
	load := func(v, of int64) overview.Load { return overview.Load{Value: float64(v), Step: share * float64(of)} }
	return []overview.Load{
		load(taken.GetCpuMilli(), capacity.GetCpuMilli()), load(taken.GetMemoryBytes(), capacity.GetMemoryBytes()), load(taken.GetDiskBytes(), capacity.GetDiskBytes()),
	}
}

func regionEntry(r *nusav1.OverviewRegion) *overview.Entry {
	u := r.GetUtilisation()
	loads := slices.Concat(amounts(r.GetAllocated(), r.GetCapacity()), []overview.Load{
		at(r.GetLastSeen()), at(r.GetMoveAt()),
		{Value: u.GetCpu(), Step: use}, {Value: u.GetMemory(), Step: use}, {Value: u.GetDisk(), Step: use}, rate(u.GetNetworkIn()), rate(u.GetNetworkOut()),
	})
	allocated, seen, move, message := r.Allocated, r.LastSeen, r.MoveAt, r.Message
	r.Allocated, r.Utilisation, r.LastSeen, r.MoveAt, r.Message = nil, nil, nil, nil, reason.WithoutNumbers(message)
	encoded := exact(r)
	r.Allocated, r.Utilisation, r.LastSeen, r.MoveAt, r.Message = allocated, u, seen, move, message
	return &overview.Entry{Key: r.GetName(), Exact: encoded, Text: message, Loads: loads, Size: proto.Size(r), Value: r}
}

func nodeEntry(n *nusav1.OverviewNode) *overview.Entry {
	loads := append(amounts(n.GetAllocated(), n.GetCapacity()), at(n.GetLastSeen()),
		overview.Load{Value: n.GetCpu(), Step: use}, overview.Load{Value: n.GetMemory(), Step: use}, overview.Load{Value: n.GetDisk(), Step: use})
	allocated, seen, cpu, memory, disk := n.Allocated, n.LastSeen, n.Cpu, n.Memory, n.Disk
	n.Allocated, n.LastSeen, n.Cpu, n.Memory, n.Disk = nil, nil, 0, 0, 0
	encoded := exact(n)
	n.Allocated, n.LastSeen, n.Cpu, n.Memory, n.Disk = allocated, seen, cpu, memory, disk
	return &overview.Entry{Key: n.GetId(), Exact: encoded, Loads: loads, Size: proto.Size(n), Value: n}
}

func jobEntry(key string, j *nusav1.OverviewJob) *overview.Entry {
	message := j.Message
	j.Message = reason.WithoutNumbers(message)
	encoded := exact(j)
	j.Message = message
	return &overview.Entry{Key: key, Exact: encoded, Text: message, Size: proto.Size(j), Value: j}
}

// headEntry returns the entry of the head. servers: with the servers of the global tier.
func headEntry(h *nusav1.OverviewHead, servers bool) *overview.Entry {
	out := &nusav1.OverviewHead{Info: h.GetInfo(), Alone: h.GetAlone(), Now: h.GetNow()}
	since := overview.Load{Step: moment}
	if alone := h.GetAlone().AsDuration(); alone > 0 {
		since.Value = float64(h.GetNow().AsTime().Add(-alone).UnixMilli()) / 1000
	}
	loads := []overview.Load{since}
	shown := &nusav1.OverviewHead{Info: h.GetInfo()}
	if servers {
		out.Servers = h.GetServers()
	}
	for _, s := range out.Servers {
		plain := &nusav1.GlobalServer{Name: s.GetName(), Address: s.GetAddress(), Active: s.GetActive(), Version: s.GetVersion(), FeatureLevel: s.GetFeatureLevel()}
		shown.Servers = append(shown.Servers, plain)
		store := s.GetStore()
		loads = append(loads, overview.Load{Value: float64(store.GetUsedBytes()), Step: share * float64(store.GetQuotaBytes())},
			overview.Load{Value: float64(store.GetJobBytes()), Step: share * float64(store.GetJobLimitBytes())}, rate(float64(store.GetJobs())))
	}
	alone := "connected"
	if since.Value > 0 {
		alone = "alone"
	}
	return &overview.Entry{Exact: alone + exact(shown), Loads: loads, Size: proto.Size(out), Value: out}
}

func dueEntry(d *nusav1.OverviewDue) *overview.Entry {
	when, message := d.At, d.Message
	d.At, d.Message = nil, reason.WithoutNumbers(message)
	encoded := exact(d)
	d.At, d.Message = when, message
	return &overview.Entry{Key: d.GetKind() + "\x00" + d.GetSubject(), Exact: encoded, Text: message, Loads: []overview.Load{at(when)}, Size: proto.Size(d), Value: d}
}

func errorEntry(e *nusav1.PartialError) *overview.Entry {
	return &overview.Entry{Key: e.GetRegion(), Exact: reason.WithoutNumbers(e.GetMessage()), Text: e.GetMessage(), Size: proto.Size(e), Value: e}
}

func countsEntry(states [overview.MaxStates]int32, total int32) *overview.Entry {
	out := &nusav1.OverviewJobCounts{States: map[string]int32{}, Total: total}
	for state, n := range states {
		if n > 0 {
			out.States[nusav1.JobState(state).String()] = n
		}
	}
	return &overview.Entry{Exact: exact(out), Size: proto.Size(out), Value: out}
}

package wire

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/config"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// ReasonToProto converts a reason. An empty one becomes REASON_UNSPECIFIED.
func ReasonToProto(r state.Reason) nusav1.Reason {
	if r == "" {
		return nusav1.Reason_REASON_UNSPECIFIED
	}
	return nusav1.Reason(nusav1.Reason_value["REASON_"+strings.ToUpper(string(r))])
}

// ReasonFromProto is the inverse of ReasonToProto.
func ReasonFromProto(r nusav1.Reason) state.Reason {
	if r == nusav1.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return state.Reason(strings.ToLower(strings.TrimPrefix(r.String(), "REASON_")))
}

// CategoryFromProto converts the category of a failure. An unknown one counts as retry.App.
func CategoryFromProto(c nusav1.FailureCategory) retry.Category {
	if _, known := nusav1.FailureCategory_name[int32(c)]; !known || c == nusav1.FailureCategory_FAILURE_CATEGORY_UNSPECIFIED {
		return retry.App
	}
	return retry.Category(strings.ToLower(strings.TrimPrefix(c.String(), "FAILURE_CATEGORY_")))
}

// FailureToProto converts a failure.
func FailureToProto(f *retry.Failure) *nusav1.Failure {
	return &nusav1.Failure{
		Category: nusav1.FailureCategory(nusav1.FailureCategory_value["FAILURE_CATEGORY_"+strings.ToUpper(string(f.Category))]),
		Task:     f.Task, ExitCode: f.ExitCode, Signal: f.Signal, Permanent: f.Permanent,
	}
}

// ResourcesToProto converts resources.
func ResourcesToProto(r state.Resources) *nusav1.Resources {
	return &nusav1.Resources{CpuMilli: r.CPUMilli, MemoryBytes: r.MemoryBytes, DiskBytes: r.DiskBytes}
}

// PositionToProto converts the position of an outbox or a set.
func PositionToProto(p state.Position) *nusav1.Position {
	return &nusav1.Position{Epoch: p.Epoch, Sequence: p.Sequence}
}

// PositionFromProto is the inverse of PositionToProto.
func PositionFromProto(p *nusav1.Position) state.Position {
	return state.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
}

// InstanceCountsToProto converts counts of instances by state.
func InstanceCountsToProto(c state.Counts) *nusav1.InstanceCounts {
	return &nusav1.InstanceCounts{
		Pending: c.Pending, Starting: c.Starting, Running: c.Running, Complete: c.Complete,
		Failed: c.Failed, Stopped: c.Stopped, Lost: c.Lost, Outdated: c.Outdated, Held: c.Held,
	}
}

// OverrideToProto converts the override of a region. held is the number of instances that it keeps stopped.
func OverrideToProto(o *state.Override, region string, held int32) *nusav1.Override {
	out := &nusav1.Override{
		Namespace: o.Namespace, Job: o.Job, Region: region, Stopped: o.Stopped, Reason: o.Reason, By: o.By,
		Set: TimestampToProto(o.SetUnixNano), Run: max(o.Run, 0), Held: held,
	}
	for _, b := range o.Groups {
		out.Groups = append(out.Groups, &nusav1.GroupOverride{Group: b.Group, Count: b.Count})
	}
	return out
}

// nodeCountsToProto converts reasons that count nodes.
func nodeCountsToProto(counts []state.Count) []*nusav1.CountedReason {
	var out []*nusav1.CountedReason
	for _, c := range counts {
		out = append(out, &nusav1.CountedReason{Reason: ReasonToProto(c.Reason), Count: c.Count, Message: c.Message, What: countsNodes})
	}
	return out
}

// TimestampToProto converts a time in nanoseconds since 1970. It returns nil for 0.
func TimestampToProto(unixNano int64) *timestamppb.Timestamp {
	if unixNano == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, unixNano))
}

// SlotToProto converts a slot of the region.
func SlotToProto(s *state.Slot, region string) *nusav1.Slot {
	return &nusav1.Slot{
		Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: s.From, To: s.To, Region: region,
		State: nusav1.SlotState(s.State), Desired: nusav1.SlotDesired(s.Desired),
		Generation: s.Generation, JobVersion: s.JobVersion, Run: s.Run, Parallel: s.Parallel,
	}
}

// SlotAnswerToProto converts an answer about a slot.
func SlotAnswerToProto(a *state.Answer) *nusav1.SlotAnswer {
	out := &nusav1.SlotAnswer{
		Namespace: a.Namespace, Job: a.Job, Group: a.Group, From: a.From, To: a.To,
		Generation: a.Generation, State: nusav1.SlotState(a.State),
		Reason: ReasonToProto(a.Reason), Message: a.Message, Counts: nodeCountsToProto(a.Counts), Bound: a.Bound, MayRun: a.MayRun,
	}
	if a.Bound {
		out.StopTime = durationpb.New(a.StopTime)
	}
	return out
}

// TasksFromStored decodes the task states of an allocation. encodeTasks encoded them.
func TasksFromStored(raw []byte) map[string]*nusav1.TaskState {
	var a nusav1.Allocation
	if err := proto.Unmarshal(raw, &a); err != nil {
		return nil
	}
	return a.Tasks
}

// OutputFromStored returns the output of an allocation. encodeTasks encoded it.
func OutputFromStored(raw []byte) (output string) {
	s := fieldScanner{rest: raw}
	for s.next() {
		if s.num == allocOutput {
			output = string(s.b)
		}
	}
	return output
}

// JobName returns the job name that users see. The name of a region's own job ends with "@"
// and the region.
func JobName(name string, local bool, region string) string {
	if local {
		return name + "@" + region
	}
	return name
}

// AllocToProto converts an allocation.
func AllocToProto(a *state.Alloc, region string) *nusav1.Allocation {
	out := orderedAllocToProto(a, region)
	out.State = nusav1.AllocState(a.DisplayState())
	out.Reason, out.Message = ReasonToProto(a.Reason), a.Message
	out.Tasks = TasksFromStored(a.Tasks)
	out.Created, out.Modified = TimestampToProto(a.CreatedUnixNano), TimestampToProto(a.ModifiedUnixNano)
	out.CreateIndex, out.ModifyIndex = a.CreateIndex, a.ModifyIndex
	out.PlacedBecause = a.PlacedBecause
	for _, g := range a.GPUs {
		out.Gpus = append(out.Gpus, &nusav1.GPUGrant{Device: g.Device, ShareMilli: g.ShareMilli})
	}
	return out
}

// RetryDecision returns what followed the failure of an allocation. It returns nil if the allocation is
// not the newest one of its instance, or has not failed.
func RetryDecision(view *state.View, a *state.Alloc) *nusav1.RetryDecision {
	if a.Live() {
		return nil
	}
	in := view.Instance(a.Key(), a.Index)
	if in.Retry == nil || in.Epoch != a.Epoch || in.Done || in.EndedUnixNano == 0 {
		return nil
	}
	return &nusav1.RetryDecision{
		Failure: FailureToProto(&in.Retry.Last), Rule: in.Retry.Rule, Retries: min(in.Failures, in.Retry.Attempts), Attempts: in.Retry.Attempts,
		Next: TimestampToProto(in.NotBeforeUnixNano), Message: RetryText(view, a.Key(), &in),
	}
}

// RetryText says which rule decided about the latest failure of an instance, and what follows.
func RetryText(view *state.View, key state.GroupKey, in *state.Instance) string {
	if in.Retry == nil {
		return ""
	}
	policy := false
	if g, ok := view.Group(key); ok {
		if s := state.SlotOf(g.Slots, in.Index); s != nil {
			if j, ok := view.Job(key.JobKey(), s.JobVersion); ok && j.Group(key.Group) != nil {
				policy = j.Group(key.Group).Retry != nil
			}
		}
	}
	text := in.Retry.Text(policy, in.Exhausted, in.Failures)
	if !in.Exhausted && in.NotBeforeUnixNano > 0 {
		text += ", at " + time.Unix(0, in.NotBeforeUnixNano).UTC().Format("15:04:05") + " UTC"
	}
	return text
}

// orderedAllocToProto converts an allocation for its agent. It leaves out the fields that
// the agent itself reports.
func orderedAllocToProto(a *state.Alloc, region string) *nusav1.Allocation {
	out := &nusav1.Allocation{
		Id: a.ID, Namespace: a.Namespace, Job: JobName(a.Job, a.Local, region), Group: a.Group, Index: a.Index,
		JobVersion: a.JobVersion, Region: region, NodeId: a.NodeID, NodeName: a.NodeName,
		Desired:    nusav1.AllocDesired(a.Desired),
		Generation: a.Generation, Epoch: a.Epoch, Incarnation: a.Incarnation, Attempt: a.Attempt,
		Resources: ResourcesToProto(a.Resources),
	}
	if a.Desired == state.Stop {
		out.Reason, out.Message = ReasonToProto(a.Reason), a.Message
	}
	if len(a.Ports) > 0 {
		out.Ports = make(map[string]int32, len(a.Ports))
		for _, p := range a.Ports {
			out.Ports[p.Label] = p.Port
		}
	}
	return out
}

// NodeToProto converts a node and its use. The caller adds statistics and silence.
func NodeToProto(view *state.View, n *state.Node, region string) *nusav1.Node {
	use := view.Use(n.ID)
	out := &nusav1.Node{
		Id: n.ID, Name: n.Name, Region: region, State: nusav1.NodeState(n.Status),
		Cordoned: n.Cordoned, Draining: n.Draining, Address: n.Address,
		Inventory: &nusav1.NodeInventory{}, Allocated: ResourcesToProto(use.Resources), Allocations: use.Allocs,
		Registered: TimestampToProto(n.RegisteredUnixNano), ModifyIndex: n.ModifyIndex,
	}
	if err := proto.Unmarshal(n.Inventory, out.Inventory); err != nil {
		out.Inventory = nil
	}
	return out
}

// Accelerators counts the accelerators of nodes by model. A node without contact counts, because it may come back:
// a job that asks for its accelerators must wait for it, and is not refused.
func Accelerators(view *state.View) map[string]int32 {
	out := map[string]int32{}
	for n := range view.Nodes() {
		if n.Status == state.NodeLeft {
			continue
		}
		for _, g := range n.GPUs {
			out[g.Model]++
		}
	}
	return out
}

// ConfigForms returns the nodes that are not lost and have a healthy driver, each with the form of the driver's
// config.
func ConfigForms(view *state.View, driver string) iter.Seq[job.ConfigForm] {
	return func(yield func(job.ConfigForm) bool) {
		for n := range view.Nodes() {
			has := slices.ContainsFunc(n.Drivers, func(d state.Driver) bool { return d.Name == driver && d.Healthy })
			if n.Status == state.NodeReady && has && !yield(job.ConfigForm{Node: n.Name, Schema: configForm(n.Inventory, driver)}) {
				return
			}
		}
	}
}

// configForm returns the form of a driver's config in an encoded inventory, or nil.
func configForm(raw []byte, driver string) config.Schema {
	var inv nusav1.NodeInventory
	if err := proto.Unmarshal(raw, &inv); err != nil {
		return nil
	}
	for _, d := range inv.GetDrivers() {
		if d.GetName() == driver {
			return job.ConfigSchemaFromProto(d.GetConfig())
		}
	}
	return nil
}

// GPUUsesToProto returns which allocations reserve the accelerators of a node.
func GPUUsesToProto(view *state.View, n *state.Node, region string) (out []*nusav1.GPUUse) {
	for a := range view.NodeAllocs(n.ID) {
		if !a.Charged {
			continue
		}
		for _, g := range a.GPUs {
			out = append(out, &nusav1.GPUUse{
				Device: g.Device, ShareMilli: g.ShareMilli, Allocation: a.ID,
				Namespace: a.Namespace, Job: JobName(a.Job, a.Local, region), Group: a.Group, Index: a.Index,
			})
		}
	}
	slices.SortFunc(out, func(a, b *nusav1.GPUUse) int {
		return cmp.Or(strings.Compare(a.GetDevice(), b.GetDevice()), strings.Compare(a.GetAllocation(), b.GetAllocation()))
	})
	return out
}

// NodeFitToProto converts how a node fits, and the reason if it does not fit.
func NodeFitToProto(v sched.NodeFit) *nusav1.NodeVerdict {
	out := &nusav1.NodeVerdict{
		NodeId: v.NodeID, NodeName: v.NodeName, Taken: v.Live,
		Reason: ReasonToProto(v.Reason), Message: v.Message, Score: v.Score,
	}
	for _, t := range v.Terms {
		out.Terms = append(out.Terms, &nusav1.ScoreTerm{Name: t.Name, Value: t.Value, Detail: t.Detail})
	}
	return out
}
